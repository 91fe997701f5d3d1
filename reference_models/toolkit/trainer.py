"""A trainer: epochs over a loader, with gradient accumulation, clipping and a schedule."""

from __future__ import annotations

import math
from collections.abc import Callable, Sized
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

#: Maps a model and a batch to the loss.
Loss = Callable[[nn.Module, Any], Tensor]


class Trainer:
    """Trains a model for `epochs` epochs.

    One optimizer step uses `accumulation` batches, or fewer at the end of an epoch.  The learning
    rate falls linearly to zero over all steps.  `clip` is the maximum gradient norm; 0 turns
    clipping off.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loader: DataLoader[Any],
        loss: Loss,
        *,
        epochs: int,
        accumulation: int = 1,
        clip: float = 0.0,
    ) -> None:
        self.model, self.optimizer, self.loader, self.loss = model, optimizer, loader, loss
        self.epochs, self.accumulation, self.clip = epochs, accumulation, clip
        self.max_steps = self.total_steps(self.batches_per_epoch())
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: max(0.0, 1.0 - step / max(1, self.max_steps))
        )
        self.steps = self.batches = 0

    def batches_per_epoch(self) -> int:
        """Return how many batches the loader yields per epoch."""
        assert isinstance(self.loader, Sized)
        return len(self.loader)

    def total_steps(self, batches: int) -> int:
        """Return how many optimizer steps the training has, with `batches` batches per epoch."""
        return math.ceil(batches / self.accumulation) * self.epochs

    def train(self) -> list[float]:
        """Train the model; return the mean loss of every step."""
        losses: list[float] = []
        self.model.train()
        for _ in range(self.epochs):
            window: list[float] = []
            for number, batch in enumerate(self.loader, 1):
                window.append(self.accumulate(batch))
                if len(window) == self.accumulation or number == self.batches_per_epoch():
                    self.update()
                    losses.append(sum(window) / len(window))
                    window = []
                if self.steps >= self.max_steps:
                    break
            if self.steps >= self.max_steps:
                break
        self.finished(self.batches, self.epochs * self.batches_per_epoch())
        return losses

    def accumulate(self, batch: Any) -> float:
        """Run forward and backward on one batch; return its loss."""
        loss = self.loss(self.model, batch)
        (loss / self.accumulation).backward()  # type: ignore[no-untyped-call]
        self.batches += 1
        return loss.item()

    def update(self) -> None:
        """Take one optimizer step."""
        if self.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()
        self.steps += 1

    def finished(self, batches: int, expected: int) -> None:
        """Do nothing; `train` calls this at its end, so that a recorder sees the two numbers.

        `batches` is the number of batches trained on, and `expected` the number in all epochs.
        """
