"""Rates that one group follows, and schedules that watch or move something else, are noticed."""

from __future__ import annotations

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR, ReduceLROnPlateau

from tests.support.learn.slips import net, sgd, slips_of, steps


@pytest.mark.parametrize(
    ("follow", "first", "wrong"),
    [
        ((0, 1), (0.1, 0.1), False),
        ((1,), (0.1, 0.1), True),
        ((0,), (0.1, 0.1), True),
        ((1,), (0.1, 0.01), False),  # a backbone with a rate of its own
        ((), (0.1, 0.1), False),
    ],
)
def test_groups_that_follow_a_schedule_by_hand(
    follow: tuple[int, ...], first: tuple[float, float], wrong: bool
) -> None:
    def program() -> None:
        model = net()
        groups = [
            {"params": list(model[at].parameters()), "lr": rate}
            for at, rate in zip((0, 3), first, strict=True)
        ]
        optimizer = torch.optim.SGD(groups)
        for step in range(6):
            for at in follow:
                optimizer.param_groups[at]["lr"] = first[at] * 0.9**step
            steps(model, optimizer)

    assert slips_of(program) == ["rates-parted"] * wrong


@pytest.mark.parametrize(
    ("first", "highest", "wrong"),
    [
        ((0.1, 0.01), 0.1, True),
        ((0.1, 0.01), [0.1, 0.01], False),
        ((0.1, 0.1), 0.1, False),
    ],
)
def test_a_schedule_with_one_highest_rate(
    first: tuple[float, float], highest: float | list[float], wrong: bool
) -> None:
    def program() -> None:
        model = net()
        groups = [
            {"params": list(model[at].parameters()), "lr": rate}
            for at, rate in zip((0, 3), first, strict=True)
        ]
        optimizer = torch.optim.SGD(groups)
        schedule = OneCycleLR(optimizer, highest, total_steps=5, cycle_momentum=False)
        for _ in range(5):
            steps(model, optimizer)
            schedule.step()

    assert slips_of(program) == ["rates-merged"] * wrong


@pytest.mark.filterwarnings("ignore:Detected call of")
@pytest.mark.parametrize("replaced", [False, True])
def test_a_schedule_of_an_optimizer_that_was_replaced(replaced: bool) -> None:
    def program() -> None:
        model = net()
        optimizer = sgd(model)
        schedule = CosineAnnealingLR(optimizer, 20)
        if replaced:
            optimizer = sgd(model)
        for _ in range(5):
            steps(model, optimizer)
            schedule.step()

    assert slips_of(program) == ["scheduled-ahead"] * replaced


@pytest.mark.parametrize(
    ("mode", "metrics", "wrong"),
    [
        ("min", [0.31, 0.44, 0.52, 0.6], True),  # shares of a hundred
        ("max", [0.31, 0.44, 0.52, 0.6], False),
        ("min", [61.0, 70.5, 79.0, 90.5], True),
        ("min", [0.6, 0.52, 0.44, 0.31], False),  # a share of errors
        ("min", [0.3141592, 0.4471828, 0.5229871, 0.6011223], False),  # a loss of an overfit
        ("min", [0.5, 0.51, 0.5, 0.52], False),
    ],
)
def test_a_schedule_that_waits_for_a_metric_to_fall(
    mode: str, metrics: list[float], wrong: bool
) -> None:
    def program() -> None:
        model = net()
        optimizer = sgd(model)
        schedule = ReduceLROnPlateau(optimizer, mode)  # type: ignore[arg-type]
        for metric in metrics:
            steps(model, optimizer)
            schedule.step(metric)

    assert slips_of(program) == ["plateau-inverted"] * wrong


@pytest.mark.filterwarnings("ignore:Detected call of")
@pytest.mark.parametrize("kind", ["cosine", "one cycle"])
@pytest.mark.parametrize(
    ("often", "length", "wrong"), [(8, 32, True), (1, 32, False), (8, 4, False), (8, 40, False)]
)
def test_a_schedule_in_steps_that_steps_for_each_epoch(
    kind: str, often: int, length: int, wrong: bool
) -> None:
    def program() -> None:
        model = net()
        optimizer = sgd(model)
        schedule = (
            CosineAnnealingLR(optimizer, length)
            if kind == "cosine"
            else OneCycleLR(optimizer, 0.1, total_steps=length + 1)
        )
        for step in range(32 + (kind == "one cycle")):
            steps(model, optimizer)
            if step % often == often - 1:
                schedule.step()

    assert slips_of(program) == ["schedule-unfinished"] * wrong
