"""Magnitude pruning in rounds: train, prune, fine-tune, prune more, and remove the masks.

With `by_hand`, masks are kept in a dict and multiplied into weights and gradients; otherwise
`torch.nn.utils.prune` replaces the weights.
"""

from __future__ import annotations

import torch
import torch.nn.utils.prune as prune
from torch import Tensor, nn


def target(x: Tensor) -> Tensor:
    return torch.sin(x[:, :1]) + 0.5 * x[:, 1:2] * x[:, 2:3]


class Masks:
    """Masks of all matrices of a model, which a round makes sparser."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.masks: dict[str, Tensor] = {}

    def prune(self, amount: float) -> None:
        for name, w in self.model.named_parameters():
            if w.dim() > 1:
                k = int(amount * w.numel())
                threshold = w.detach().abs().flatten().kthvalue(max(1, k)).values
                self.masks[name] = (w.detach().abs() > threshold).float()
        self.apply()

    @torch.no_grad()
    def apply(self) -> None:
        for name, w in self.model.named_parameters():
            if name in self.masks:
                w.mul_(self.masks[name])

    def mask_gradients(self) -> None:
        for name, w in self.model.named_parameters():
            if name in self.masks and w.grad is not None:
                w.grad.mul_(self.masks[name])


def train(
    *,
    seed: int = 0,
    steps: int = 6,
    rounds: int = 3,
    hidden: int = 20,
    amount: float = 0.3,
    by_hand: bool = False,
) -> list[float]:
    """Fit a function in `rounds` rounds of `steps` steps; each round prunes `amount` more."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(5, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 1)
    )
    layers = [m for m in model if isinstance(m, nn.Linear)]
    masks = Masks(model)
    losses: list[float] = []
    x_val = torch.randn(64, 5)
    for round_ in range(rounds):
        if round_:
            if by_hand:
                masks.prune(1 - (1 - amount) ** round_)
            else:
                prune.global_unstructured(
                    [(m, "weight") for m in layers],
                    pruning_method=prune.L1Unstructured,
                    amount=amount,
                )
        # weight_orig is a new name of the old parameter; momentum starts anew on purpose
        opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        for _ in range(steps):
            x = torch.randn(48, 5)
            loss = nn.functional.mse_loss(model(x), target(x))
            opt.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            masks.mask_gradients()
            opt.step()
            masks.apply()
            losses.append(loss.item())
        with torch.no_grad():
            model.eval()
            nn.functional.mse_loss(model(x_val), target(x_val))
            model.train()
    if not by_hand:
        for m in layers:
            prune.remove(m, "weight")  # type: ignore[no-untyped-call]
    return losses
