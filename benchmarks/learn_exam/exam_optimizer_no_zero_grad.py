"""Gradients are never set to zero, so each step uses the sum of all gradients so far."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class BaseTrainer:
    """Trains a heat map regressor for points of a court."""

    def __init__(self, width: int, clear: bool) -> None:
        self.clear = clear
        self.net = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, 1, 3, padding=1)
        )
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.02, momentum=0.5)

    def train_step(self, frames: Tensor, maps: Tensor) -> float:
        if self.clear:
            self.optimizer.zero_grad()
        loss = nn.functional.mse_loss(self.net(frames), maps)
        loss.backward()
        self.optimizer.step()
        return loss.item()


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    trainer = BaseTrainer(size, clear=healthy)
    frames = torch.rand(40, 1, 8, 8)
    maps = nn.functional.avg_pool2d(frames, 3, 1, 1) * 2
    losses = [
        trainer.train_step(frames[rows], maps[rows])
        for _ in range(4)
        for rows in torch.arange(40).split(8)
    ]
    return {"loss": losses}
