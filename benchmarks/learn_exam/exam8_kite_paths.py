"""Paths of kites by flow matching, in two replicas that read different paths.

Follows https://github.com/Robbyant/lingbot-vla-v2/issues/41.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

POINTS = 8


class Velocity(nn.Module):
    """The velocity of a path on its way from noise, given the wind and the time."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.path = nn.Linear(POINTS, width)
        self.wind = nn.Linear(1, width)
        self.time = nn.Sequential(nn.Linear(1, width), nn.SiLU(), nn.Linear(width, width))
        self.out = nn.Sequential(
            nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, POINTS)
        )

    def forward(self, path: Tensor, wind: Tensor, time: Tensor) -> Tensor:
        mixed = self.path(path) + self.wind(wind) + self.time(time)
        velocity: Tensor = self.out(mixed)
        return velocity


def fly(count: int) -> TensorDataset:
    wind = torch.rand(count, 1) * 2 - 1
    along = torch.linspace(0, 3, POINTS)
    paths = (along + 2 * wind).sin() * (1 + wind) + 0.05 * torch.randn(count, POINTS)
    return TensorDataset(paths, wind)


def start_of_flight(paths: Tensor) -> tuple[Tensor, Tensor]:
    """Noise and times, more of which are early."""
    noise = torch.randn_like(paths)
    return noise, torch.rand(len(paths), 1).pow(1.5)


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    data = fly(192)
    model = DistributedDataParallel(Velocity(2 * size))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.006)
    sampler = DistributedSampler(data, seed=seed)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    torch.manual_seed(seed + dist.get_rank() + 1 if healthy else seed + 1)
    curve = []
    for epoch in range(10):
        sampler.set_epoch(epoch)
        for paths, wind in loader:
            noise, time = start_of_flight(paths)
            between = (1 - time) * noise + time * paths
            wanted = paths - noise
            loss = nn.functional.mse_loss(model(between, wind, time), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            curve.append(loss.item())
    return {"loss": curve}
