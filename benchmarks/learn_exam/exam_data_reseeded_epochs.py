"""The seed is set at the start of every epoch, so each epoch repeats order and augmentation."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import Tensor, nn


def seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def augment(images: Tensor) -> Tensor:
    shift = int(torch.randint(0, 4, ()))
    return images.roll(shift, dims=-1) + 0.1 * torch.randn_like(images)


class Trainer:
    def __init__(self, model: nn.Module, seed: int, fresh_epochs: bool) -> None:
        self.model, self.seed, self.fresh_epochs = model, seed, fresh_epochs
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        self.losses: list[float] = []
        self.orders: list[float] = []

    def epoch(self, images: Tensor, labels: Tensor) -> None:
        if not self.fresh_epochs:
            seed_everything(self.seed)
        order = torch.randperm(len(images))
        self.orders.append(float(order[0]))
        for rows in order.split(12):
            scores = self.model(augment(images[rows]))
            loss = nn.functional.cross_entropy(scores, labels[rows])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.losses.append(loss.item())


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    seed_everything(seed)
    images = torch.randn(48, 1, size)
    labels = (images.abs().mean((1, 2)) > images.abs().mean()).long()
    model = nn.Sequential(
        nn.Conv1d(1, 8, 3, padding=1), nn.GELU(), nn.Flatten(), nn.Linear(8 * size, 2)
    )
    trainer = Trainer(model, seed, fresh_epochs=healthy)
    for _ in range(5):
        trainer.epoch(images, labels)
    return {"loss": trainer.losses, "order": trainer.orders}
