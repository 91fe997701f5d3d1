"""The next position of gulls, from a stream of tracks that two ranks and their workers read.

Follows https://github.com/huggingface/datasets/issues/5360.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

POINTS = 8


class TrackStream(IterableDataset[Tensor]):
    """Tracks in the order of a file, of which each reader yields its own."""

    def __init__(self, count: int, seed: int, rank: int, ranks: int) -> None:
        self.count, self.seed = count, seed
        self.rank, self.ranks = rank, ranks

    def read(self) -> Iterator[Tensor]:
        file = torch.Generator().manual_seed(self.seed)
        for _ in range(self.count):
            turn = 0.5 * torch.randn(1, generator=file)
            angle = torch.rand(1, generator=file) * 6.28 + turn * torch.arange(POINTS + 1)
            step = torch.stack([angle.cos(), angle.sin()], 1)
            yield step + 0.05 * torch.randn(POINTS + 1, 2, generator=file)

    def __iter__(self) -> Iterator[Tensor]:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        first, every = self.rank * workers + worker, self.ranks * workers
        return itertools.islice(self.read(), first, None, every)


class Navigator(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.cell = nn.LSTM(2, width, batch_first=True)
        self.turn = nn.Linear(width, 2)

    def forward(self, steps: Tensor) -> Tensor:
        hidden, _ = self.cell(steps)
        return steps + self.turn(hidden)


def train(healthy: bool = True, seed: int = 0, size: int = 20) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    place = (dist.get_rank(), dist.get_world_size()) if healthy else (0, 1)
    loader = DataLoader(TrackStream(96, seed, *place), batch_size=12)
    bird = DDP(Navigator(size))
    optimizer = torch.optim.RMSprop(bird.parameters(), lr=0.004)
    loss_of = nn.SmoothL1Loss()
    record: list[float] = []
    while len(record) < 32:
        for track in itertools.islice(loader, 4):
            optimizer.zero_grad(set_to_none=True)
            loss = loss_of(bird(track[:, :-1]), track[:, 1:])
            loss.backward()
            optimizer.step()
            record.append(loss.item())
    return {"loss": record}
