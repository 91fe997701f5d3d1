"""Two clinics learn from their own patients for some steps, and then meet in the middle."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn


@torch.no_grad()
def meet(net: nn.Module, anchor: list[Tensor], outer_rate: float) -> None:
    """Moves all replicas from the last common point by the mean of their moves."""
    for p, old in zip(net.parameters(), anchor, strict=True):
        move = p - old
        dist.all_reduce(move)
        move /= dist.get_world_size()
        old.add_(move, alpha=outer_rate)
        p.copy_(old)


def patients(clinic: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    x = torch.randn(20, 6, generator=g) + 0.3 * clinic
    risk = torch.tanh(x[:, :1] - 0.5 * x[:, 1:2] * x[:, 2:3])
    return x, risk


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    clinic = dist.get_rank()
    g = torch.Generator().manual_seed(1_000 * seed + clinic)
    net = nn.Sequential(nn.Linear(6, size), nn.Tanh(), nn.Linear(size, 1))
    anchor = [p.detach().clone() for p in net.parameters()]
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    losses = []
    for step in range(32):
        x, risk = patients(clinic, g)
        loss = nn.functional.mse_loss(net(x), risk)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 4 == 3:
            meet(net, anchor, outer_rate=1.0)
        losses.append(loss.item())
    return {"loss": losses}
