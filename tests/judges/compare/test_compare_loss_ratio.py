"""Losses that are one multiple of the reference's are said to be; other wrong losses are not."""

from __future__ import annotations

import pytest
import torch

from pytest_trainsafe.core.finding import Pattern
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.guards.leading import led_by_setup
from pytest_trainsafe.judges.compare.judgement import lead_of
from tests.support.compare.traces import Bench, Record, only


def divided(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
    """The loss divided by 3 instead of by 4."""
    return part * 4 / 3


def divided_on_one_rank(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
    return part * 4 / 3 if at["dp"] else part


def shifted(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
    return part + 1


def by_tokens(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
    """Divided by a number that differs between micro-batches."""
    assert record.id.microbatch is not None
    return part * (1 + record.id.microbatch)


def pattern_of(bench: Bench, edit, dtype: str = "float64") -> Pattern | None:
    rung = bench.rung(Point.of(dp=2), only("loss", "loss", edit), dtype)
    comparison = led_by_setup(rung, compare(rung))
    return lead_of([f for f in comparison.findings if f.verdict == "fail"]).pattern


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_a_wrong_divisor_of_all_losses_is_said_with_its_ratio(bench: Bench, dtype: str) -> None:
    found = pattern_of(bench, divided, dtype)

    assert found is not None
    assert found.name == "scaled"
    assert found.factor == pytest.approx(4 / 3, rel=1e-2)
    assert found.text.startswith("the loss is 1.33")
    assert found.text.endswith("times the reference in 4 micro-batches")
    assert found.cause.startswith("the loss is divided by another number")


def test_the_losses_of_one_rank_are_counted_alone(bench: Bench) -> None:
    found = pattern_of(bench, divided_on_one_rank)

    assert found is not None
    assert found.text == "the loss is 1.33333 times the reference in 2 micro-batches"


@pytest.mark.parametrize("edit", [shifted, by_tokens])
def test_losses_without_a_common_ratio_get_none(bench: Bench, edit) -> None:
    found = pattern_of(bench, edit)

    assert found is None or "micro-batches" not in found.text
