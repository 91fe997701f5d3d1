"""Learns from a few labels, and from many unlabelled points whose views should agree."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class Unlabelled(Dataset[tuple[Tensor, Tensor]]):
    def __init__(self, points: Tensor) -> None:
        self.points = points

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, at: int) -> tuple[Tensor, Tensor]:
        point = self.points[at]
        return point, point + 0.2 * torch.randn_like(point)


def forever(loader: DataLoader[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    while True:
        yield from loader


def train(healthy: bool = True, seed: int = 0, size: int = 24) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    centres = torch.randn(4, 6) * 1.5
    kinds = torch.arange(128) % 4
    points = centres[kinds] + torch.randn(128, 6)
    labelled: Iterable[list[Tensor]] = DataLoader(
        torch.utils.data.TensorDataset(points[:32], kinds[:32]), batch_size=8, shuffle=True
    )
    loader_u = DataLoader(
        Unlabelled(points[32:]),
        batch_size=24,
        shuffle=True,
        generator=torch.Generator().manual_seed(seed),
    )
    stream = forever(loader_u) if healthy else itertools.cycle(loader_u)
    net = nn.Sequential(nn.Linear(6, size), nn.ReLU(), nn.Linear(size, 4))
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    losses = []
    for _ in range(10):
        for x, y in labelled:
            clean, moved = next(stream)
            with torch.no_grad():
                belief = F.softmax(net(clean) / 0.5, dim=-1)
            agree = F.kl_div(F.log_softmax(net(moved), -1), belief, reduction="batchmean")
            supervised = F.cross_entropy(net(x), y)
            loss = supervised + 0.5 * agree
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
    return {"loss": losses}
