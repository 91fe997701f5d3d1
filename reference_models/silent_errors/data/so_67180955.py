"""Stack Overflow 67180955 (TrainCheck's B6): all workers of a loader draw the same numbers.

https://stackoverflow.com/questions/67180955, and
https://tanelp.github.io/posts/a-bug-that-plagues-thousands-of-open-source-ml-projects/: workers are
forked with the state of NumPy's generator and augment alike.  Since pull request 56488 torch seeds
NumPy's global generator in every worker; a generator that a dataset holds is still copied as it is.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, get_worker_info

from pytest_trainsafe.reference_models.training.outcome import Outcome


class Crops(Dataset[tuple[Tensor, Tensor]]):
    """Random crops of one signal, each with the sample that follows it."""

    def __init__(self, length: int, width: int, seed: int) -> None:
        self.signal = torch.sin(torch.arange(256) / 5) + torch.cos(torch.arange(256) / 17)
        self.length, self.width, self.seed = length, width, seed
        self.random = np.random.default_rng(seed)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        start = int(self.random.integers(256 - self.width))
        crop = self.signal[start : start + self.width + 1]
        return crop[:-1], crop[-1:]


def reseed(worker: int) -> None:
    """Give the dataset of a worker a generator with its own seed."""
    info = get_worker_info()
    assert info is not None
    info.dataset.random = np.random.default_rng([info.dataset.seed, worker])  # type: ignore[attr-defined]


def train(*, faulty: bool, seed: int = 0, steps: int = 6) -> Outcome:
    """Predict the sample that follows a crop.

    In the Outcome, `facts["repeated"]` is the number of batches equal to the batch before them.
    """
    torch.manual_seed(seed)
    dataset = Crops(length=8 * steps, width=12, seed=seed)
    loader = DataLoader(
        dataset, batch_size=8, num_workers=2, worker_init_fn=None if faulty else reseed
    )
    model = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses: list[float] = []
    repeated, previous = 0, None
    for crops, targets in loader:
        repeated += previous is not None and torch.equal(previous, crops)
        previous = crops
        optimizer.zero_grad()
        loss = F.mse_loss(model(crops), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return Outcome(losses, {"repeated": repeated})
