"""A training that draws from every kind of generator, and can be restarted from a checkpoint."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from pytest_trainsafe import ReplayCheckpoint, fast_forward

#: Batches of an epoch, and the step before which the checkpoint is saved: in the second epoch.
EPOCH, SAVED = 4, 6


class Position:
    """A sampler whose state has values of several types."""

    def __init__(self) -> None:
        self.state = {"position": 0, "seen": torch.zeros(2), "names": ("a", 1.5, None, b"\0z")}

    def state_dict(self):
        return dict(self.state)

    def load_state_dict(self, state):
        self.state = dict(state)


def train(
    folder: Path, *, load: bool = False, steps: int = 10, before: Callable[[], object] | None = None
) -> list[float]:
    """Train from the start and save in `folder`, or load from it; returns the losses.

    `before` is called in the first step.
    """
    seed = 100 if load else 0  # a restarted process may have drawn other numbers
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    inputs = torch.arange(32.0).reshape(16, 2) / 32
    model = nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.3), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    shuffling, noise = torch.Generator().manual_seed(seed), np.random.default_rng(seed)
    own, sampler = random.Random(seed), Position()
    generators = {"shuffle": shuffling, "noise": noise, "own": own}
    replay = ReplayCheckpoint("toy", generators=generators, states={"sampler": sampler})
    rows = torch.arange(16)

    def shuffle() -> None:
        rows.copy_(rows[torch.randperm(16, generator=shuffling)])

    loader = DataLoader(TensorDataset(inputs), batch_size=4, shuffle=True)
    order = replay.regenerates("order", shuffle, keep="all")
    batches = replay.regenerates("batches", lambda: iter(loader))
    first = 0
    if load:
        state = torch.load(folder / "model.pt", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        counters = replay.load(folder)
        assert counters == {"step": SAVED, "epoch": SAVED // EPOCH}
        assert sampler.state["position"] == SAVED
        first = counters["step"]
        iterator = fast_forward(batches, skip=first % EPOCH)
        fast_forward(order)
    losses = []
    for step in range(first, steps):
        if step % EPOCH == 0:
            order()
            iterator = batches()
        with replay.first_step():
            if before is not None and step == first:
                before()
            [batch] = next(iterator)
            start = step % EPOCH * 4
            scale = random.random() + np.random.rand() + noise.normal() + own.random()
            optimizer.zero_grad()
            loss = model(batch + scale * inputs[rows[start : start + 4]]).square().mean()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
        sampler.state["position"] = step + 1
        if step + 1 == SAVED and not load:
            replay.save(folder, step=SAVED, epoch=SAVED // EPOCH)
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, folder / "model.pt")
    return losses
