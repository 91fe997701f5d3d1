"""Sharpness-aware minimisation (Foret et al., 2021): two forwards and backwards for each step.

The optimizer wraps another one, moves the weights up the gradient, and moves them back before the
inner optimizer steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class SAM(torch.optim.Optimizer):
    """`first_step` climbs by `rho`, `second_step` returns and steps the base optimizer."""

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        base_optimizer: Callable[..., torch.optim.Optimizer],
        rho: float = 0.05,
        adaptive: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(params, {"rho": rho, "adaptive": adaptive, **kwargs})
        self.base_optimizer = base_optimizer(self.param_groups, **kwargs)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self, zero_grad: bool = False) -> None:
        """Move each weight towards the worst point near by."""
        grad_norm = self._grad_norm()
        for group in self.param_groups:
            scale = group["rho"] / (grad_norm + 1e-12)
            for p in group["params"]:
                if p.grad is None:
                    continue
                self.state[p]["old_p"] = p.data.clone()
                p.add_((torch.pow(p, 2) if group["adaptive"] else 1.0) * p.grad * scale)
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def second_step(self, zero_grad: bool = False) -> None:
        """Return to the weights before `first_step`, and step with the gradients from there."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.data = self.state[p]["old_p"]
        self.base_optimizer.step()
        if zero_grad:
            self.zero_grad()

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Not used: the loop calls both steps."""
        raise NotImplementedError

    def _grad_norm(self) -> Tensor:
        norm: Tensor = torch.norm(
            torch.stack(
                [
                    ((torch.abs(p) if group["adaptive"] else 1.0) * p.grad).norm(p=2)
                    for group in self.param_groups
                    for p in group["params"]
                    if p.grad is not None
                ]
            ),
            p=2,
        )
        return norm


def running_stats(model: nn.Module, *, on: bool) -> None:
    """Let batch norms update their statistics in the first of the two forwards only."""
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            if on and hasattr(module, "backup_momentum"):
                module.momentum = module.backup_momentum  # type: ignore[assignment]
            elif not on:
                module.backup_momentum = module.momentum  # type: ignore[assignment]
                module.momentum = 0


def train(
    *,
    seed: int = 0,
    steps: int = 12,
    width: int = 16,
    rho: float = 0.05,
    adaptive: bool = False,
    norms: bool = True,
) -> list[float]:
    """Classify points of three clusters; without `norms`, the model has none."""
    torch.manual_seed(seed)
    centres = 1.5 * torch.randn(3, 6)
    model = nn.Sequential(
        nn.Linear(6, width),
        nn.BatchNorm1d(width) if norms else nn.Identity(),
        nn.ReLU(),
        nn.Linear(width, 3),
    )
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = SAM(
        model.parameters(), torch.optim.SGD, rho=rho, adaptive=adaptive, lr=0.1, momentum=0.9
    )
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer.base_optimizer, step_size=5, gamma=0.5)
    train_losses = []
    for _ in range(steps):
        model.train()
        targets = torch.randint(3, (24,))
        inputs = centres[targets] + 0.5 * torch.randn(24, 6)

        running_stats(model, on=True)
        loss = criterion(model(inputs), targets)
        loss.backward()
        optimizer.first_step(zero_grad=True)

        running_stats(model, on=False)
        criterion(model(inputs), targets).backward()
        optimizer.second_step(zero_grad=True)

        with torch.no_grad():
            train_losses.append(loss.item())
        scheduler.step()
    return train_losses
