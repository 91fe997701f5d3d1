"""Two replicas forecast rain; a batch with a broken gauge must not move the weights."""

from __future__ import annotations

from collections import deque

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP


class SpikeGuard:
    """Says whether a loss is far above the recent ones."""

    def __init__(self, factor: float, together: bool) -> None:
        self.recent: deque[float] = deque(maxlen=8)
        self.factor, self.together = factor, together

    def refuses(self, loss: Tensor) -> bool:
        usual = sum(self.recent) / len(self.recent) if self.recent else float("inf")
        spike = torch.tensor(float(loss.item() > self.factor * usual))
        if self.together:
            dist.all_reduce(spike, op=dist.ReduceOp.MAX)
        if not spike.item():
            self.recent.append(loss.item())
        return bool(spike.item())


def gauges(step: int, rank: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    wind = torch.randn(20, 7, generator=g)
    rain = torch.relu(wind[:, :1] + 0.5 * wind[:, 1:2] * wind[:, 2:3])
    if (step + 5 * rank) % 11 == 10:
        rain = rain + 12
    return wind, rain


def train(healthy: bool = True, seed: int = 0, size: int = 24) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    rank = dist.get_rank()
    g = torch.Generator().manual_seed(2 * seed + rank)
    net = nn.Sequential(nn.Linear(7, size), nn.ReLU(), nn.Linear(size, 1))
    model = DDP(net)
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    guard = SpikeGuard(5.0, together=healthy)
    losses: list[float] = []
    clean: list[float] = []
    for step in range(44):
        wind, rain = gauges(step, rank, g)
        loss = nn.functional.smooth_l1_loss(model(wind), rain)
        opt.zero_grad()
        loss.backward()
        if not guard.refuses(loss):
            opt.step()
        losses.append(min(loss.item(), 2.0))
        with torch.no_grad():
            clean.append(net(wind).mean().item())
    return {"loss": losses, "mean": clean}
