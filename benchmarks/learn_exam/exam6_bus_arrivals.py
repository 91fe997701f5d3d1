"""Predicts delays of buses; a run that gets worse goes back to its best weights with a lower rate.

Follows https://github.com/WenjieDu/PyPOTS/issues/667.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn


class Forecaster(nn.Module):
    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(features, hidden), nn.Tanh(), nn.Linear(hidden, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x).squeeze(-1)


class Trainer:
    def __init__(self, model: nn.Module, lr: float, copies: bool) -> None:
        self.model = model
        self.copies = copies
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
        self.best_loss = float("inf")
        self.best_state: dict[str, Any] = {}
        self.losses: list[float] = []
        self.restored: list[float] = []

    def validate(self, x: Tensor, y: Tensor) -> float:
        self.model.eval()
        with torch.no_grad():
            loss = nn.functional.mse_loss(self.model(x), y).item()
        self.model.train()
        return loss

    def remember(self) -> None:
        state = self.model.state_dict()
        self.best_state = deepcopy(state) if self.copies else state

    def go_back(self) -> None:
        self.model.load_state_dict(self.best_state)
        for group in self.optimizer.param_groups:
            group["lr"] *= 0.5

    def fit(self, batches: list[tuple[Tensor, Tensor]], held: tuple[Tensor, Tensor]) -> None:
        for x, y in batches:
            loss = nn.functional.mse_loss(self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.losses.append(loss.item())
            score = self.validate(*held)
            if score < self.best_loss:
                self.best_loss = score
                self.remember()
            elif score > 1.1 * self.best_loss:
                self.go_back()
        self.model.load_state_dict(self.best_state)
        self.restored.append(self.validate(*held))


def rides(count: int, law: Tensor) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, len(law))
    return x, torch.sin(x @ law) + 0.1 * torch.randn(count)


def train(healthy: bool = True, seed: int = 0, size: int = 32) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    law = 0.5 * torch.randn(6)
    batches = [rides(24, law) for _ in range(30)]
    trainer = Trainer(Forecaster(6, size), lr=0.15, copies=healthy)
    trainer.fit(batches, rides(64, law))
    return {"loss": trainer.losses, "restored": trainer.restored}
