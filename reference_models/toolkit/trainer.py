"""A trainer: epochs over a loader, with accumulation, clipping and a schedule."""

from __future__ import annotations

import math
from collections.abc import Callable, Sized
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

#: The loss of a model on a batch.
Loss = Callable[[nn.Module, Any], Tensor]


class Trainer:
    """Trains for `epochs` epochs; one optimizer step takes `accumulation` batches, or what is left.

    The rate falls linearly to zero over all steps.  `clip` is the largest gradient norm that is let
    through (0 lets all through).
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
        """How many batches the loader yields."""
        assert isinstance(self.loader, Sized)
        return len(self.loader)

    def total_steps(self, batches: int) -> int:
        """How many optimizer steps the training has, for `batches` batches an epoch."""
        return math.ceil(batches / self.accumulation) * self.epochs

    def train(self) -> list[float]:
        """Train; returns the mean loss of every step."""
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
        """Forward and backward of one batch."""
        loss = self.loss(self.model, batch)
        (loss / self.accumulation).backward()  # type: ignore[no-untyped-call]
        self.batches += 1
        return loss.item()

    def update(self) -> None:
        """One optimizer step."""
        if self.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()
        self.steps += 1

    def finished(self, batches: int, expected: int) -> None:
        """Called at the end with how many batches were trained on, of how many."""
