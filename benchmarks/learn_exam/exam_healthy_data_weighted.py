"""Rare classes are drawn more often by a weighted sampler, in seeded workers."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler


class Signals(Dataset[tuple[Tensor, int]]):
    def __init__(self, width: int) -> None:
        self.labels = [0] * 60 + [1] * 12
        self.signals = torch.randn(72, width) + torch.tensor(self.labels)[:, None]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        gain = np.random.uniform(0.9, 1.1)
        return self.signals[index] * float(gain), self.labels[index]


def seed_worker(worker: int) -> None:
    np.random.seed(torch.initial_seed() % 2**32)


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    data = Signals(size)
    counts = torch.bincount(torch.tensor(data.labels)).float()
    weights = (1 / counts)[torch.tensor(data.labels)].tolist()
    loader = DataLoader(
        data,
        batch_size=12,
        sampler=WeightedRandomSampler(weights, len(data)),
        num_workers=2,
        worker_init_fn=seed_worker,
    )
    model = nn.Linear(size, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        for signals, labels in loader:
            loss = nn.functional.cross_entropy(model(signals), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return {"loss": losses}
