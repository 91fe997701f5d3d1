"""Gradient surgery (Yu et al., 2020): gradients of tasks that conflict are projected.

Each task's gradient is taken by itself, and the combined one is written into `.grad`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class PCGrad:
    """Wraps an optimizer; `pc_backward` replaces the backward of a sum of losses."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optim = optimizer

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self._optim

    def zero_grad(self) -> None:
        self._optim.zero_grad(set_to_none=True)

    def step(self) -> None:
        self._optim.step()

    def pc_backward(self, objectives: list[Tensor]) -> None:
        """Write the projected sum of the gradients of all objectives."""
        flat, shapes = [], []
        for objective in objectives:
            self._optim.zero_grad(set_to_none=True)
            objective.backward(retain_graph=True)  # type: ignore[no-untyped-call]
            own = [
                torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in self._params()
            ]
            shapes = [p.shape for p in own]
            flat.append(torch.cat([p.flatten() for p in own]))
        merged = torch.stack(self._project(flat)).mean(0)
        sizes = [shape.numel() for shape in shapes]
        parts = torch.split(merged, sizes)
        for p, grad, shape in zip(self._params(), parts, shapes, strict=True):
            p.grad = grad.view(shape)

    def _project(self, grads: list[Tensor]) -> list[Tensor]:
        projected = []
        for i, g in enumerate(grads):
            g_i = g.clone()
            for j in torch.randperm(len(grads)).tolist():
                dot = torch.dot(g_i, grads[j])
                if j != i and dot < 0:
                    g_i -= dot * grads[j] / grads[j].norm() ** 2
            projected.append(g_i)
        return projected

    def _params(self) -> list[nn.Parameter]:
        return [p for group in self._optim.param_groups for p in group["params"]]


class MultiHead(nn.Module):
    """A trunk with a regression head and a classification head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(7, width), nn.ELU(), nn.Linear(width, width), nn.ELU())
        self.value, self.kind = nn.Linear(width, 1), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.trunk(x)
        return self.value(h).squeeze(-1), self.kind(h)


def train(
    *, seed: int = 0, steps: int = 12, width: int = 16, lr: float = 5e-3, by_grad: bool = False
) -> list[float]:
    """Train on two tasks; with `by_grad`, gradients come from `autograd.grad` and are averaged."""
    torch.manual_seed(seed)
    model = MultiHead(width)
    optimizer = PCGrad(torch.optim.Adam(model.parameters(), lr=lr))
    losses = []
    for _ in range(steps):
        x = torch.randn(40, 7)
        value, kind = x[:, 0] - x[:, 1] * x[:, 2], x[:, :3].argmax(1)
        value_hat, kind_hat = model(x)
        tasks = [F.smooth_l1_loss(value_hat, value), F.cross_entropy(kind_hat, kind)]
        if by_grad:
            shared = list(model.trunk.parameters())
            optimizer.zero_grad()
            sum(tasks).backward(retain_graph=True)  # type: ignore[union-attr]
            first, second = (
                torch.autograd.grad(each, shared, retain_graph=not at)
                for at, each in enumerate(tasks)
            )
            for p, one, other in zip(shared, first, second, strict=True):
                p.grad = 0.5 * (one / (one.norm() + 1e-8) + other / (other.norm() + 1e-8))
        else:
            optimizer.pc_backward(tasks)
        optimizer.step()
        losses.append(float(torch.stack(tasks).sum().detach()))
    return losses
