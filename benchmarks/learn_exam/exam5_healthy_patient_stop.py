"""Stops when the validation gets no better, and goes back to the best weights (a small Trainer)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

Hook = Callable[["Trainer", float], None]


class EarlyStopping:
    def __init__(self, patience: int) -> None:
        self.patience, self.left, self.best = patience, patience, float("inf")
        self.weights: dict[str, Any] = {}

    def __call__(self, trainer: Trainer, valid: float) -> None:
        if valid < self.best - 1e-3:
            self.best, self.left = valid, self.patience
            self.weights = copy.deepcopy(trainer.model.state_dict())
        else:
            self.left -= 1
            trainer.stopped = self.left < 0


class Trainer:
    def __init__(self, model: nn.Module, hooks: list[Hook]) -> None:
        self.model, self.hooks, self.stopped = model, hooks, False
        self.opt = torch.optim.Adam(model.parameters(), lr=2e-2)
        self.plateau = ReduceLROnPlateau(self.opt, mode="min", factor=0.5, patience=1)
        self.losses: list[float] = []

    def epoch(self, x: Tensor, y: Tensor) -> None:
        self.model.train()
        for rows in torch.randperm(len(x)).split(16):
            self.opt.zero_grad()
            loss = nn.functional.mse_loss(self.model(x[rows]), y[rows])
            loss.backward()
            self.opt.step()
            self.losses.append(loss.item())

    @torch.inference_mode()
    def valid(self, x: Tensor, y: Tensor) -> float:
        self.model.eval()
        return nn.functional.mse_loss(self.model(x), y).item()


def train(seed: int = 0, size: int = 24) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    x = torch.randn(96, 5)
    y = x[:, :1] ** 2 - x[:, 1:2] + 0.3 * torch.randn(96, 1)
    model = nn.Sequential(nn.Linear(5, size), nn.ReLU(), nn.Dropout(0.2), nn.Linear(size, 1))
    stopping = EarlyStopping(patience=2)
    trainer = Trainer(model, [stopping])
    valids = []
    for _ in range(12):
        trainer.epoch(x[:64], y[:64])
        valids.append(trainer.valid(x[64:], y[64:]))
        trainer.plateau.step(valids[-1])
        for hook in trainer.hooks:
            hook(trainer, valids[-1])
        if trainer.stopped:
            break
    model.load_state_dict(stopping.weights)
    return {"loss": trainer.losses, "valid": [*valids, trainer.valid(x[64:], y[64:])]}
