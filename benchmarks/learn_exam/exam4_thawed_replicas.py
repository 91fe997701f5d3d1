"""Two replicas tune a head on wing shapes, and after a few steps the trunk below it as well."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP

THAW_AT = 10


class WingNet(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(8, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()
        )
        self.head = nn.Linear(width, 3)

    def forward(self, wings: Tensor) -> Tensor:
        species: Tensor = self.head(self.trunk(wings))
        return species


def share(step: int, rank: int, seed: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(10_000 * seed + 2 * step + rank)
    wings = torch.randn(16, 8, generator=g)
    score = torch.stack([wings[:, 0] * wings[:, 1], wings[:, 2].abs(), wings[:, 3]], 1)
    return wings, score.argmax(1)


def gap(module: nn.Module) -> float:
    """How far the replicas' parameters are apart at most."""
    flat = torch.cat([p.detach().flatten() for p in module.parameters()])
    low, high = flat.clone(), flat.clone()
    dist.all_reduce(low, dist.ReduceOp.MIN)
    dist.all_reduce(high, dist.ReduceOp.MAX)
    return (high - low).max().item()


def train(healthy: bool = True, seed: int = 0, size: int = 24) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    rank = dist.get_rank()
    net = WingNet(size)
    net.trunk.requires_grad_(False)
    replica = DDP(net)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    log: dict[str, list[float]] = {"loss": [], "gap": []}
    for step in range(50):
        if step == THAW_AT:
            net.trunk.requires_grad_(True)
            if healthy:
                replica = DDP(net)
        wings, species = share(step, rank, seed)
        loss = nn.functional.cross_entropy(replica(wings), species)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log["loss"].append(loss.item())
        log["gap"].append(gap(net))
    return log
