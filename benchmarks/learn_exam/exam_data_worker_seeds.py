"""Each worker of the loader copies one generator, so all workers draw the same noise."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, get_worker_info


class NoisyPoints(Dataset[tuple[Tensor, Tensor]]):
    """Points with a label and fresh noise each time that they are read."""

    def __init__(self, count: int, width: int, seed: int) -> None:
        made = np.random.default_rng(seed)
        self.points = made.standard_normal((count, width)).astype(np.float32)
        self.labels = np.asarray(self.points.sum(1) > 0, dtype=np.int64)
        self.random = np.random.default_rng(seed + 1)

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        noise = np.float32(0.3) * self.random.standard_normal(self.points.shape[1], np.float32)
        return torch.from_numpy(self.points[index] + noise), torch.tensor(self.labels[index])


def reseed(worker: int) -> None:
    """Gives the copy of the dataset in this worker a generator of its own."""
    info = get_worker_info()
    assert info is not None
    assert isinstance(info.dataset, NoisyPoints)
    info.dataset.random = np.random.default_rng([info.seed % 2**32, worker])


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    data = NoisyPoints(64, size, seed)
    loader = DataLoader(
        data,
        batch_size=8,
        shuffle=True,
        num_workers=2,
        worker_init_fn=reseed if healthy else None,
    )
    model = nn.Sequential(nn.Linear(size, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    losses: list[float] = []
    for _ in range(3):
        for points, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(points), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return {"loss": losses}
