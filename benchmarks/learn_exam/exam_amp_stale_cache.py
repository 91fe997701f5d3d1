"""One autocast region spans the whole loop, so forward passes use casts of old weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Policy(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(6, width)
        self.outer = nn.Linear(width, 6)

    def forward(self, state: Tensor) -> Tensor:
        return self.outer(torch.relu(self.inner(state)))


def half() -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16)


@contextmanager
def nothing() -> Iterator[None]:
    yield


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    policy = Policy(size)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-2)
    states = torch.randn(64, 6)
    flow = states.roll(1, dims=1)
    losses = []
    around_the_loop, around_each_pass = (nothing, half) if healthy else (half, nothing)
    with around_the_loop():
        for step in range(20):
            rows = torch.arange(step * 16, step * 16 + 16) % 64
            with around_each_pass():
                loss = nn.functional.mse_loss(policy(states[rows]).float(), flow[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return {"loss": losses}
