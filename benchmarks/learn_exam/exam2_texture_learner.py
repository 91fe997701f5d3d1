"""A learner that draws a fixed number of batches from an endless stream and calls its hooks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

Batch = list[Tensor]


def forever(loader: DataLoader[tuple[Tensor, ...]]) -> Iterator[Batch]:
    while True:
        yield from loader


class Learner:
    def __init__(self, width: int) -> None:
        self.body = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride=2, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 3),
        )  # fmt: skip
        self.opt = torch.optim.SGD(self.body.parameters(), lr=0.05, momentum=0.9, nesterov=True)
        self.after_batch: list[Callable[[float], None]] = []

    def fit(self, stream: Iterator[Batch], iterations: int) -> None:
        self.body.train()
        for images, classes in itertools.islice(stream, iterations):
            self.opt.zero_grad()
            loss = nn.functional.cross_entropy(self.body(images), classes)
            loss.backward()
            self.opt.step()
            for hook in self.after_batch:
                hook(loss.item())


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    classes = torch.arange(60) % 3
    rows = torch.arange(8).view(8, 1)
    columns = torch.arange(8).view(1, 8)
    patterns = torch.stack([rows % 2 + 0 * columns, columns % 2 + 0 * rows, (rows + columns) % 2])
    images = patterns[classes].unsqueeze(1) + 0.7 * torch.randn(60, 1, 8, 8)
    loader = DataLoader(
        TensorDataset(images, classes), batch_size=12, shuffle=True,
        generator=torch.Generator().manual_seed(seed),
    )  # fmt: skip
    stream = forever(loader) if healthy else itertools.cycle(loader)
    learner = Learner(size)
    losses: list[float] = []
    learner.after_batch.append(losses.append)
    learner.fit(stream, 25)
    return {"loss": losses}
