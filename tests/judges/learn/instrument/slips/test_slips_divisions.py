"""Losses that are divided by another number than that of the micro-batches are noticed."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.support.learn.slips import sgd, slips_of

ROWS = 8


def train(windows: list[int], by: float, *, rows: int = ROWS, weight: float = 1.0) -> list[str]:
    """The slips of steps with so many micro-batches each, whose losses are divided by `by`."""

    def program() -> None:
        model = nn.Linear(4, 3)
        optimizer = sgd(model)
        for count in windows:
            optimizer.zero_grad()
            for _ in range(count):
                loss = F.cross_entropy(model(torch.randn(rows, 4)), torch.randint(3, (rows,)))
                (weight * loss / by if by != 1 else weight * loss).backward()
            optimizer.step()

    return slips_of(program)


@pytest.mark.parametrize(
    ("by", "weight", "wrong"),
    [(ROWS, 1.0, True), (1, 1.0, False), (1, 1 / ROWS, False), (2, 1.0, False)],
)
def test_a_mean_that_is_divided_by_the_number_of_examples(
    by: float, weight: float, wrong: bool
) -> None:
    assert train([1] * 4, by, weight=weight) == ["mean-divided"] * wrong


@pytest.mark.parametrize(
    ("windows", "by", "slips"),
    [
        ([4] * 4, 4, []),
        ([4] * 4, 6, ["window-misdivided"]),
        ([4] * 4, 8, []),  # by the number of ranks too
        ([5] * 4, 4, ["window-misdivided"]),
        ([4, 4, 2, 4, 4, 2], 4, []),  # the last window of an epoch is shorter
        ([1, 4, 4], 4, ["window-short"]),
        ([3, 3, 3], 3, []),
    ],
)
def test_windows_whose_losses_are_divided(windows: list[int], by: int, slips: list[str]) -> None:
    assert train(windows, by) == slips


def test_small_batches_say_nothing_of_a_division() -> None:
    assert train([1] * 4, 3, rows=3) == []
