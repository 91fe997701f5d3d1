"""Forecasts blood glucose from the last readings, and goes back to the best epoch on a plateau."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn

HISTORY = 8


def readings(patients: int, gen: torch.Generator) -> tuple[Tensor, Tensor]:
    """Windows of a noisy daily rhythm per patient, and the reading that follows."""
    phase = torch.rand(patients, 1, generator=gen) * 2 * math.pi
    level = torch.randn(patients, 1, generator=gen) * 0.3
    hours = torch.arange(HISTORY + 1) * 0.6
    curve = torch.sin(hours + phase) + level
    curve = curve + 0.25 * torch.randn(patients, HISTORY + 1, generator=gen)
    return curve[:, :-1], curve[:, -1:]


class BestSoFar:
    """Remembers the weights of the epoch with the smallest validation error."""

    def __init__(self, net: nn.Module, own_copy: bool) -> None:
        self.net, self.own_copy = net, own_copy
        self.error, self.age = float("inf"), 0
        self.weights: dict[str, Tensor] = {}

    def consider(self, error: float) -> None:
        self.age += 1
        if error < self.error:
            self.error, self.age = error, 0
            state = self.net.state_dict()
            self.weights = copy.deepcopy(state) if self.own_copy else state

    def go_back(self) -> None:
        self.net.load_state_dict(self.weights)
        self.age = 0


def train(healthy: bool = True, seed: int = 0, size: int = 24) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    gen = torch.Generator().manual_seed(100 + seed)
    x, y = readings(48, gen)
    x_val, y_val = readings(64, gen)
    net = nn.Sequential(nn.Linear(HISTORY, size), nn.Tanh(), nn.Linear(size, 1))
    opt = torch.optim.SGD(net.parameters(), lr=0.3, momentum=0.8)
    best = BestSoFar(net, own_copy=healthy)
    log: dict[str, list[float]] = {"loss": [], "validation": [], "returned": []}
    for _epoch in range(16):
        for rows in torch.randperm(len(x), generator=gen).split(12):
            loss = nn.functional.mse_loss(net(x[rows]), y[rows])
            opt.zero_grad()
            loss.backward()
            opt.step()
            log["loss"].append(loss.item())
        with torch.no_grad():
            error = nn.functional.mse_loss(net(x_val), y_val).item()
        log["validation"].append(error)
        best.consider(error)
        if best.age == 2:
            best.go_back()
            for group in opt.param_groups:
                group["lr"] *= 0.4
    best.go_back()
    with torch.no_grad():
        log["returned"].append(nn.functional.mse_loss(net(x_val), y_val).item())
    return log
