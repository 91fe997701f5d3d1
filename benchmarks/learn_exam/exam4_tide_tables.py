"""Predicts tides with a deep residual tower; the run is continued from a checkpoint."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

Named = tuple[str, nn.Parameter]


class Floor(nn.Module):
    def __init__(self, width: int, gain: float) -> None:
        super().__init__()
        self.gain = gain
        self.lin = nn.Linear(width, width, bias=False)

    def forward(self, h: Tensor) -> Tensor:
        return h + self.gain * torch.tanh(self.lin(h))


class Tower(nn.Module):
    def __init__(self, width: int, floors: int = 12) -> None:
        super().__init__()
        self.entry = nn.Linear(6, width)
        self.floors = nn.Sequential(
            *(Floor(width, gain=0.8 if floor < floors // 2 else 0.01) for floor in range(floors))
        )
        self.exit = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        height: Tensor = self.exit(self.floors(self.entry(x)))
        return height


def make_rmsprop(
    tower: Tower, order: Callable[[Iterable[Named]], Iterable[Named]]
) -> torch.optim.RMSprop:
    """Square matrices decay; everything else does not."""
    square, rest = [], []
    for name, p in order(tower.named_parameters()):
        (square if name.startswith("floors") else rest).append((name, p))
    rest.sort(key=lambda pair: pair[0])
    groups: list[dict[str, Any]] = [
        {"params": [p for _, p in square], "weight_decay": 1e-4},
        {"params": [p for _, p in rest], "weight_decay": 0.0},
    ]
    return torch.optim.RMSprop(groups, lr=4e-3)


def by_name(named: Iterable[Named]) -> Iterable[Named]:
    return sorted(named, key=lambda pair: pair[0])


def tides(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    phases = torch.rand(32, 6, generator=generator) * 6
    height = torch.sin(phases[:, 0]) + 0.5 * torch.cos(phases[:, 1] + phases[:, 2])
    return phases - 3, height[:, None]


def run(
    tower: Tower, rmsprop: torch.optim.RMSprop, gen: torch.Generator, steps: int
) -> list[float]:
    losses = []
    for _ in range(steps):
        x, height = tides(gen)
        loss = nn.functional.smooth_l1_loss(tower(x), height)
        rmsprop.zero_grad()
        loss.backward()
        rmsprop.step()
        losses.append(loss.item())
    return losses


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    gen = torch.Generator().manual_seed(seed)
    tower = Tower(size)
    rmsprop = make_rmsprop(tower, list)
    losses = run(tower, rmsprop, gen, steps=40)
    file = io.BytesIO()
    torch.save({"tower": tower.state_dict(), "rmsprop": rmsprop.state_dict()}, file)

    file.seek(0)
    saved = torch.load(file, weights_only=True)
    tower = Tower(size)
    tower.load_state_dict(saved["tower"])
    rmsprop = make_rmsprop(tower, list if healthy else by_name)
    rmsprop.load_state_dict(saved["rmsprop"])
    return {"loss": losses + run(tower, rmsprop, gen, steps=40)}
