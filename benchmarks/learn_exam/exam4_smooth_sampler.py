"""Learns to turn noise into points on two moons, with an averaged network for the samples."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


def moons(n: int, rng: torch.Generator) -> Tensor:
    angle = math.pi * torch.rand(n, generator=rng)
    upper = torch.rand(n, generator=rng) < 0.5
    x = torch.where(upper, torch.cos(angle), 1 - torch.cos(angle))
    y = torch.where(upper, torch.sin(angle), 0.5 - torch.sin(angle))
    return torch.stack([x, y], 1)


class Velocity(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(3, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(),
            nn.Linear(hidden, 2),
        )  # fmt: skip

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        v: Tensor = self.net(torch.cat([x, time], 1))
        return v


@dataclass
class Session:
    """Everything that a run needs, and that a checkpoint is made of."""

    model: Velocity
    average: Velocity
    optimizer: torch.optim.Optimizer
    rng: torch.Generator

    @classmethod
    def start(cls, hidden: int, seed: int) -> Session:
        model = Velocity(hidden)
        optimizer = torch.optim.Adam(model.parameters(), lr=6e-2)
        rng = torch.Generator().manual_seed(seed)
        return cls(model, copy.deepcopy(model).requires_grad_(False), optimizer, rng)

    def state(self) -> dict[str, Any]:
        return copy.deepcopy(
            {
                "model": self.model.state_dict(),
                "average": self.average.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "rng": self.rng.get_state(),
            }
        )

    def resume(self, state: dict[str, Any], with_average: bool) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.rng.set_state(state["rng"])
        self.average.load_state_dict(state["average" if with_average else "model"])

    def error(self, net: Velocity, n: int, rng: torch.Generator) -> Tensor:
        data, noise = moons(n, rng), torch.randn(n, 2, generator=rng)
        time = torch.rand(n, 1, generator=rng)
        between = (1 - time) * noise + time * data
        return nn.functional.mse_loss(net(between, time), data - noise)

    def step(self) -> float:
        loss = self.error(self.model, 8, self.rng)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(self.average.parameters(), self.model.parameters(), strict=True):
                slow.lerp_(fast, 0.06)
        return loss.item()

    def sampled(self) -> float:
        with torch.no_grad():
            return self.error(self.average, 400, torch.Generator().manual_seed(1)).item()


def train(healthy: bool = True, seed: int = 0, size: int = 24) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    losses, averaged = [], []
    session = Session.start(size, seed)
    for step in range(110):
        if step == 80:
            state = session.state()
            session = Session.start(size, seed + 1)
            session.resume(state, with_average=healthy)
        losses.append(session.step())
        averaged.append(session.sampled())
    return {"loss": losses, "averaged": averaged}
