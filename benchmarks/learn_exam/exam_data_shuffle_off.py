"""The training loader keeps the order of the files, which is sorted by class."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


@dataclass(frozen=True)
class Config:
    width: int
    loader: dict[str, object] = field(default_factory=dict)
    epochs: int = 4


class SmallConv(nn.Module):
    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(torch.relu(self.norm(self.stem(images))).mean((2, 3)))


def images(count: int, classes: int) -> TensorDataset:
    labels = torch.arange(count) * classes // count
    pictures = torch.randn(count, 1, 6, 6) * (1 + labels.float()).view(-1, 1, 1, 1)
    return TensorDataset(pictures, labels)


def fit(config: Config, dataset: TensorDataset) -> list[float]:
    loader = DataLoader(dataset, batch_size=16, **config.loader)  # type: ignore[arg-type]
    model = SmallConv(config.width, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    losses = []
    for _ in range(config.epochs):
        for pictures, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(pictures), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    options: dict[str, object] = {"shuffle": True} if healthy else {}
    return {"loss": fit(Config(size, options), images(96, 3))}
