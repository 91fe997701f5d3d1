"""On resume the optimizer does not exist yet, so its state is dropped and Adam starts cold."""

from __future__ import annotations

import io
from typing import Any

import torch
from torch import nn


class Trainer:
    def __init__(self, width: int, keep_for_later: bool) -> None:
        self.model = nn.Sequential(nn.Linear(7, width), nn.Hardswish(), nn.Linear(width, 2))
        self.optimizer: torch.optim.Optimizer | None = None
        self.keep_for_later = keep_for_later
        self.waiting: dict[str, Any] | None = None
        self.losses: list[float] = []

    def save(self) -> io.BytesIO:
        assert self.optimizer is not None
        file = io.BytesIO()
        torch.save(
            {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}, file
        )
        file.seek(0)
        return file

    def resume(self, file: io.BytesIO) -> None:
        checkpoint = torch.load(file)
        self.model.load_state_dict(checkpoint["model"])
        if self.optimizer is not None:
            self.optimizer.load_state_dict(checkpoint["optimizer"])
        elif self.keep_for_later:
            self.waiting = checkpoint["optimizer"]

    def setup(self) -> torch.optim.Optimizer:
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        if self.waiting is not None:
            self.optimizer.load_state_dict(self.waiting)
        return self.optimizer

    def train(self, boxes: torch.Tensor, classes: torch.Tensor, steps: int) -> None:
        optimizer = self.setup()
        for _ in range(steps):
            loss = nn.functional.cross_entropy(self.model(boxes), classes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            self.losses.append(loss.item())


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    boxes = torch.rand(64, 7)
    classes = (boxes[:, 0] > boxes[:, 1]).long()
    first = Trainer(size, keep_for_later=healthy)
    first.train(boxes, classes, 12)
    second = Trainer(size, keep_for_later=healthy)
    second.resume(first.save())
    second.train(boxes, classes, 12)
    return {"loss": first.losses + second.losses}
