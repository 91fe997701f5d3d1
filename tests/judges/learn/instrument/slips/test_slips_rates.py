"""Slips in how schedules set the learning rate are noticed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.optim.lr_scheduler import ExponentialLR, LambdaLR, LRScheduler, MultiStepLR

from tests.support.learn.slips import net, slips_of, steps

RATE = 0.05


def program(made: Callable[[torch.optim.Optimizer], LRScheduler], count: int) -> list[str]:
    def train() -> None:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        scheduler = made(optimizer)
        for _ in range(count):
            steps(model, optimizer)
            scheduler.step()

    return slips_of(train)


@pytest.mark.parametrize(
    ("factor", "slips"),
    [
        (lambda step: RATE * 0.9**step, ["rate-squared"]),
        (lambda step: RATE * min(1, step / 3, 1.5 - step / 8), ["rate-squared"]),
        (lambda step: 0.9**step, []),
        (lambda step: min(1, (step + 1) / 20), []),  # a warm-up that begins with this number
    ],
)
def test_a_function_that_returns_the_rate_itself(
    factor: Callable[[int], float], slips: list[str]
) -> None:
    assert program(lambda optimizer: LambdaLR(optimizer, factor), 6) == slips


@pytest.mark.parametrize(("gamma", "slips"), [(0.1, ["rate-vanished"]), (0.5, [])])
def test_a_rate_that_a_schedule_makes_vanish(gamma: float, slips: list[str]) -> None:
    assert program(lambda optimizer: ExponentialLR(optimizer, gamma), 6) == slips
    milestones = [1, 2, 3, 4, 5]
    assert program(lambda optimizer: MultiStepLR(optimizer, milestones, gamma), 6) == slips


@pytest.mark.filterwarnings("ignore:The epoch parameter")
@pytest.mark.parametrize(("given", "slips"), [(0.7, ["metric-as-epoch"]), (3, []), (None, [])])
def test_what_a_schedule_gets(given: float | None, slips: list[str]) -> None:
    def train() -> None:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        scheduler = ExponentialLR(optimizer, 0.9)
        for _ in range(3):
            steps(model, optimizer)
            scheduler.step(given)  # type: ignore[arg-type]

    assert slips_of(train) == slips
