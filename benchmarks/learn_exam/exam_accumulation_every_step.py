"""The optimizer steps after every micro-batch, with gradients that are meant for a window."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn


class PretrainingTrainer:
    """Trains a model on masked words with accumulation."""

    def __init__(self, width: int, window: int, only_full: bool) -> None:
        self.window, self.only_full = window, only_full
        self.model = nn.Sequential(
            nn.Embedding(18, width), nn.Flatten(), nn.Linear(5 * width, width), nn.ReLU(),
            nn.Linear(width, 18),
        )  # fmt: skip
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=5e-3)
        self.losses: list[float] = []

    def batches(self, count: int) -> Iterator[tuple[Tensor, Tensor]]:
        for _ in range(count):
            words = torch.randint(1, 18, (12, 1)).expand(-1, 5).clone()
            answers = words[:, 2].clone()
            words[:, 2] = 0
            yield words, answers

    def train(self, count: int) -> None:
        for step, (words, answers) in enumerate(self.batches(count)):
            loss = nn.functional.cross_entropy(self.model(words), answers)
            (loss / self.window).backward()
            full = (step + 1) % self.window == 0
            if full or not self.only_full:
                self.optimizer.step()
            if full:
                self.optimizer.zero_grad()
            self.losses.append(loss.item())


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    trainer = PretrainingTrainer(size, 4, only_full=healthy)
    trainer.train(48)
    return {"loss": trainer.losses}
