"""Learned queries look at a set of measured points and name the shape that made them (float64)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class SlotReader(nn.Module):
    def __init__(self, width: int, slots: int, dtype: torch.dtype, early: bool) -> None:
        super().__init__()
        self.embed = nn.Linear(3, width, dtype=dtype)
        self.key = nn.Linear(width, width, bias=False, dtype=dtype)
        self.value = nn.Linear(width, width, dtype=dtype)
        start = torch.randn(slots, width) * 0.3
        if early:
            self.slots = nn.Parameter(start.to(dtype))
        else:
            self.slots = nn.Parameter(start).to(dtype)
        self.verdict = nn.Linear(slots * width, 4, dtype=dtype)

    def forward(self, points: Tensor) -> Tensor:
        h = torch.tanh(self.embed(points))
        weight = self.slots @ self.key(h).transpose(1, 2) / math.sqrt(h.shape[-1])
        seen = weight.softmax(-1) @ self.value(h)
        named: Tensor = self.verdict(seen.flatten(1))
        return named


def shapes(count: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    kind = torch.randint(0, 4, (count,), generator=rng)
    points = torch.randn(count, 10, 3, generator=rng, dtype=torch.float64)
    stretch = torch.tensor([[2.0, 1, 1], [1, 2.0, 1], [1, 1, 2.0], [0.4, 0.4, 0.4]]).double()
    return points * stretch[kind][:, None], kind


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    rng = torch.Generator().manual_seed(seed)
    reader = SlotReader(size, slots=4, dtype=torch.float64, early=healthy)
    optimizer = torch.optim.Adam(reader.parameters(), lr=8e-3)
    out: dict[str, list[float]] = {"loss": []}
    for _ in range(50):
        points, kind = shapes(48, rng)
        loss = nn.functional.cross_entropy(reader(points), kind)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        out["loss"].append(loss.item())
    return out
