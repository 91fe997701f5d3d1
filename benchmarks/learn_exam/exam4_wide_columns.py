"""Fits wind fields with a wide layer whose columns are made in the process that holds them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn


class SeedTracker:
    """Keeps a state of the random numbers for parts that are split, next to the common one."""

    def __init__(self, seed: int, rank: int, apart: bool) -> None:
        offset = 2718 + (rank if apart else 0)
        self.split_seed = seed + offset

    @contextmanager
    def fork(self) -> Iterator[None]:
        common = torch.get_rng_state()
        torch.manual_seed(self.split_seed)
        try:
            yield
        finally:
            torch.set_rng_state(common)


class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        grad = grad.contiguous().clone()
        dist.all_reduce(grad)
        return grad


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous().clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class WideLayer(nn.Module):
    def __init__(self, dim: int, columns: int, tracker: SeedTracker) -> None:
        super().__init__()
        world = dist.get_world_size()
        with tracker.fork():
            self.into = nn.Linear(dim, columns // world)
            self.back = nn.Linear(columns // world, dim, bias=False)
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        return Leave.apply(self.back(torch.tanh(self.into(Enter.apply(x))))) + self.bias


class WindModel(nn.Module):
    def __init__(self, columns: int, tracker: SeedTracker) -> None:
        super().__init__()
        self.wide = WideLayer(2, columns, tracker)
        self.speed = nn.Linear(2, 1)

    def forward(self, place: Tensor) -> Tensor:
        speed: Tensor = self.speed(self.wide(place))
        return speed


def field(g: torch.Generator) -> tuple[Tensor, Tensor]:
    place = 2 * torch.rand(64, 2, generator=g) - 1
    speed = torch.sin(math.pi * place[:, :1]) + torch.cos(math.pi * place[:, 1:])
    return 2 * place, speed


def train(healthy: bool = True, seed: int = 0, size: int = 6) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    tracker = SeedTracker(seed, dist.get_rank(), apart=healthy)
    model = WindModel(size, tracker)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-2)
    g = torch.Generator().manual_seed(seed + 90)
    losses = []
    for _ in range(120):
        place, speed = field(g)
        loss = F.mse_loss(model(place), speed)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"loss": losses}
