"""A linear warm-up of the first epoch by hand, then a reduction of the rate on plateaus."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau


class Fit:
    def __init__(self, model: nn.Module, rate: float) -> None:
        self.model, self.rate, self.steps = model, rate, 0
        self.optimizer = torch.optim.Adam(model.parameters(), lr=rate)
        self.plateau = ReduceLROnPlateau(self.optimizer, factor=0.5, patience=0, threshold=0.05)
        self.losses: list[float] = []

    def epoch(self, x: Tensor, y: Tensor) -> None:
        self.model.train()
        for rows in torch.randperm(len(x)).split(10):
            if self.steps < 4:
                for group in self.optimizer.param_groups:
                    group["lr"] = self.rate * (self.steps + 1) / 4
            loss = nn.functional.mse_loss(self.model(x[rows]), y[rows])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.losses.append(loss.item())
            self.steps += 1

    def validate(self, x: Tensor, y: Tensor) -> None:
        self.model.eval()
        with torch.no_grad():
            self.plateau.step(nn.functional.mse_loss(self.model(x), y).item())


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    x = torch.rand(60, 3) * 4
    y = x.prod(1, keepdim=True).sqrt()
    fit = Fit(nn.Sequential(nn.Linear(3, size), nn.SiLU(), nn.Linear(size, 1)), 3e-2)
    for _ in range(8):
        fit.epoch(x[:40], y[:40])
        fit.validate(x[40:], y[40:])
    return {"loss": fit.losses}
