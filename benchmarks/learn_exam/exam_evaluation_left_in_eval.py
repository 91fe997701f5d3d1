"""Validation in the middle of an epoch puts the model into eval mode and leaves it there."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class TrainManager:
    def __init__(self, width: int, back_to_train: bool) -> None:
        self.model = nn.Sequential(
            nn.Linear(10, width), nn.ReLU(), nn.Dropout(0.5), nn.Linear(width, 10)
        )
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        self.back_to_train = back_to_train
        self.losses: list[float] = []
        self.modes: list[float] = []

    def validate(self, held_out: Tensor) -> float:
        self.model.eval()
        with torch.no_grad():
            error = nn.functional.mse_loss(self.model(held_out), held_out).item()
        if self.back_to_train:
            self.model.train()
        return error

    def train_and_validate(self, data: Tensor, held_out: Tensor, epochs: int) -> None:
        for _ in range(epochs):
            self.model.train()
            for number, rows in enumerate(data.split(8)):
                self.modes.append(float(self.model.training))
                loss = nn.functional.mse_loss(self.model(rows), rows)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                self.losses.append(loss.item())
                if number == 2:
                    self.validate(held_out)


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    manager = TrainManager(size, back_to_train=healthy)
    data = torch.randn(64, 3) @ torch.randn(3, 10)
    manager.train_and_validate(data[:48], data[48:], epochs=5)
    return {"loss": manager.losses, "mode": manager.modes}
