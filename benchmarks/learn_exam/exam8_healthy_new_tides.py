"""Tides, in cycles of which each starts with a high rate and an optimizer without a memory."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

HARMONICS = 4


class Tide(nn.Module):
    """Waves with learned paces, and what a small network adds to them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.pace = nn.Parameter(torch.linspace(0.5, 2.0, HARMONICS))
        self.rest = nn.Sequential(nn.Linear(2 * HARMONICS, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, time: Tensor) -> Tensor:
        angle = time * self.pace
        height: Tensor = self.rest(torch.cat([angle.sin(), angle.cos()], 1))
        return height


def groups(tide: Tide) -> list[dict[str, object]]:
    return [
        {"params": [tide.pace], "weight_decay": 0.0, "share": 0.2},
        {"params": tide.rest.parameters(), "weight_decay": 0.01, "share": 1.0},
    ]


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    tide = Tide(2 * size)
    source = torch.Generator().manual_seed(seed)
    log: dict[str, list[float]] = {"loss": [], "rate": []}
    length = 8
    for _ in range(3):
        optimizer = torch.optim.AdamW(groups(tide), lr=0.0)
        for step in range(length):
            rate = 0.03 * (1 + math.cos(math.pi * step / length)) / 2
            for group in optimizer.param_groups:
                group["lr"] = rate * group["share"]
            time = 8 * torch.rand(48, 1, generator=source)
            height = (1.1 * time).sin() + 0.4 * (1.9 * time + 0.5).cos()
            loss = F.smooth_l1_loss(tide(time), height)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            log["loss"].append(loss.item())
            log["rate"].append(rate)
        length *= 2
    return log
