"""A small training, and a listener that keeps what it receives, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from pytest_trainsafe.judges.learn.events.events import Call, Change
from pytest_trainsafe.judges.learn.events.table import Table, replay


class Kept:
    """A Listener that keeps calls, changes and steps; `of` reads them from a table."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.returned: list[Call] = []
        self.changes: list[Change] = []
        self.samples: list[Change] = []
        self.steps: list[int] = []

    @classmethod
    def of(cls, table: Table) -> Kept:
        kept = cls()
        replay(table, kept)
        return kept

    def entered(self, call: Call) -> None:
        self.calls.append(call)

    def left(self, call: Call) -> None:
        self.returned.append(call)

    def changed(self, change: Change) -> None:
        (self.changes if change.changed else self.samples).append(change)

    def step_ended(self, step: int) -> None:
        self.steps.append(step)

    def apis(self) -> list[str]:
        return [call.api for call in self.calls]

    def called(self, api: str) -> list[Call]:
        return [call for call in self.calls if call.api == api]

    def of_object(self, name: str, attribute: str) -> list[Change]:
        return [c for c in self.changes if (c.object, c.attribute) == (name, attribute)]


class Net(nn.Module):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.two(F.relu(self.one(x)))
        return hidden


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: int = 2,
    then: Callable[[int], Any] = lambda step: None,
) -> None:
    """A plain loop; `then` is called after each optimizer step."""
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).square().mean().backward()
        optimizer.step()
        then(step)
