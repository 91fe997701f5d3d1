"""A siamese network with a contrastive loss: Adagrad, a separate generator for each worker."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Pairs(IterableDataset[tuple[Tensor, Tensor, float]]):
    """Endless pairs of shifted shapes; each worker draws from its own seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __iter__(self):  # type: ignore[no-untyped-def]
        info = get_worker_info()
        random = np.random.default_rng([self.seed, 0 if info is None else info.id])
        shapes = np.random.default_rng(self.seed).normal(size=(4, 8, 8)).astype("float32")
        while True:
            one, other = random.integers(4, size=2)
            views = [
                np.roll(shapes[each], int(random.integers(3))) + random.normal(size=(8, 8)) * 0.1
                for each in (one, other)
            ]
            first, second = (torch.tensor(view, dtype=torch.float32)[None] for view in views)
            yield first, second, float(one == other)


def train(
    *, seed: int = 0, steps: int = 8, workers: int = 2, margin: float = 1.0, width: int = 8
) -> list[float]:
    """Pull views of one shape together and push others apart."""
    torch.manual_seed(seed)
    tower = nn.Sequential(
        nn.Conv2d(1, width, 3),
        nn.LeakyReLU(0.1),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(width * 9, 8),
    )
    optimizer = torch.optim.Adagrad(tower.parameters(), lr=0.02)
    decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.95)
    loader = iter(DataLoader(Pairs(seed), batch_size=16, num_workers=workers))
    losses = []
    for _ in range(steps):
        first, second, same = next(loader)
        distance = F.pairwise_distance(tower(first), tower(second))
        apart = F.relu(margin - distance)
        loss = (same * distance.square() + (1 - same) * apart.square()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        decay.step()
        losses.append(loss.item())
    return losses
