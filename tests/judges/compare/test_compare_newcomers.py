"""Faults that new users meet first: a bias added before a missing sum, and ignored axes."""

from __future__ import annotations

import pytest
import torch

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.guards.vacuity import guard
from pytest_trainsafe.judges.compare.patterns.catalogue import explain
from pytest_trainsafe.trace.schema import NoteEvent
from tests.support.compare.faults import drawn, like, term, wrong_tensor
from tests.support.compare.traces import Bench

BIAS = drawn("bias", 16)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_a_missing_all_reduce_is_explained_although_every_rank_added_a_bias(dtype: str) -> None:
    clean = drawn("clean", 8, 16)

    def view(reference: torch.Tensor, at: dict[str, int]) -> torch.Tensor:
        return term(clean, at["tp"], 4) + BIAS

    found = explain(wrong_tensor(clean + BIAS, view, dtype=dtype, kind="activation"))

    assert found is not None
    assert (found.name, found.axis) == ("partial sum", "tp")
    assert "plus the same row everywhere" in found.text
    assert "an all-reduce over tp is missing" in found.cause


def test_random_values_are_not_explained_as_a_partial_sum_with_a_bias() -> None:
    found = explain(
        wrong_tensor(
            drawn("clean", 8, 16),
            lambda reference, at: like(f"other {at['tp']}", reference),
            kind="activation",
        )
    )

    assert found is None or found.name != "partial sum"


@pytest.mark.parametrize(
    ("axis", "value"), [("sp", True), ("zero", 1), ("zero", 2), ("ep", 2), ("recompute", "full")]
)
def test_an_axis_that_the_program_never_reads_is_not_in_effect(
    bench: Bench, axis: str, value: int | bool | str
) -> None:
    point = Point.of({"tp": 2, axis: value})
    ignored = [NoteEvent("read_axis", "tp")]

    assert _unread(bench, point, ignored)
    assert not _unread(bench, point, [*ignored, NoteEvent("read_axis", axis)])


@pytest.mark.parametrize(("axis", "value"), [("sp", False), ("zero", 0), ("ep", 1)])
def test_an_axis_at_its_trivial_value_need_not_be_read(
    bench: Bench, axis: str, value: int | bool
) -> None:
    assert not _unread(bench, Point.of({"tp": 2, axis: value}), [NoteEvent("read_axis", "tp")])


def _unread(bench: Bench, point: Point, notes: list[NoteEvent]) -> bool:
    """Whether the guard `in-effect` says that the program does not read an axis."""
    rung = bench.rung(point, notes=notes)
    found = [f.message for f in guard(rung, compare(rung)) if f.check == "in-effect"]
    words = "neither takes an argument of that name nor reads the axis"
    return any(words in text for text in found)
