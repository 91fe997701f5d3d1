"""Casts are watched in Runs of the reference, and not where no number is rounded."""

from __future__ import annotations

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.reference_models import gpt
from pytest_trainsafe.runs.specs import spec_of
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.sweep.program import resolve


def test_no_cast_is_watched_on_exact_numbers_nor_in_the_run_that_decides_for_them() -> None:
    program = resolve(gpt.train)
    arguments = program.complete({})
    case = Case(Point.of({"tp": 2}), program, Settings(), arguments, arguments)

    exact = spec_of(case, "reference", "exact")

    assert spec_of(case, "reference", "float64").watch_casts
    # The watch would see each operator of the semantics, thirty for one of the program.
    assert not exact.watch_casts
    assert exact.replay is not None
    assert not exact.replay.watch_casts
