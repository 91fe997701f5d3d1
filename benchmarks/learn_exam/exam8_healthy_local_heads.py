"""Soups of two kitchens: the ranks share a trunk, and each has a head for its own guests."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

SPICES = 8


class Kitchen(nn.Module):
    """A trunk that is the same in all kitchens, and the taste of this one's guests."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(SPICES, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()
        )
        self.taste = nn.Linear(width, 1)

    def forward(self, soup: Tensor) -> Tensor:
        liked: Tensor = self.taste(self.trunk(soup))
        return liked.squeeze(1)


def share(trunk: nn.Module) -> None:
    """Averages the gradients of the trunk; those of the heads stay where they are."""
    grads = [each.grad for each in trunk.parameters() if each.grad is not None]
    flat = torch.cat([each.flatten() for each in grads])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    at = 0
    for grad in grads:
        grad.copy_(flat[at : at + grad.numel()].view_as(grad))
        at += grad.numel()


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    kitchen = Kitchen(2 * size)
    common = torch.randn(SPICES, 3) / 2
    source = torch.Generator().manual_seed(20 * seed + dist.get_rank())
    guests = torch.randn(3, generator=source)
    nn.init.normal_(kitchen.taste.weight, std=0.1, generator=source)
    optimizer = torch.optim.Adam(
        [
            {"params": kitchen.trunk.parameters(), "lr": 0.006},
            {"params": kitchen.taste.parameters(), "lr": 0.02},
        ]
    )
    curve = []
    for _ in range(45):
        soup = torch.randn(24, SPICES, generator=source)
        liked = (soup @ common).tanh() @ guests
        loss = F.mse_loss(kitchen(soup), liked)
        optimizer.zero_grad()
        loss.backward()
        share(kitchen.trunk)
        nn.utils.clip_grad_norm_(kitchen.trunk.parameters(), 2.0)
        optimizer.step()
        curve.append(loss.item())
    return {"loss": curve}
