"""Failures that start at the same tensor are a family, unless they may have another cause."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.comparison import Comparison
from pytest_trainsafe.judges.compare.localize.budget import Budget
from pytest_trainsafe.judges.compare.localize.search import family_of, localize
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.sweep.program import Program
from tests.support.compare.clipped_traces import rung
from tests.support.compare.traces import only


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory):
    """The family of a failure of one tensor, with a Point and arguments of the candidate."""
    made: dict[str, tuple[RungTraces, Comparison]] = {}

    def family(path: str, point: Point, arguments: dict[str, object]) -> object:
        if path not in made:
            folder: Path = tmp_path_factory.mktemp("family")
            double = only("main_grad", path, lambda r, at, part: part * 2)
            found = rung(folder, Point.of(dp=2), double, limit=0)
            made[path] = found, compare(found)
        found, comparison = made[path]
        case = Case(point, Program("fit:train"), Settings(), {}, arguments)
        first = next(f for f in comparison.findings if f.verdict == "fail")
        return family_of(case, found, first)

    return family


def test_failures_at_different_parallel_points_of_a_program_are_one_family(families) -> None:
    one = families("fc1.bias", Point.of(tp=2), {})
    assert one == families("fc1.bias", Point.of(tp=2, cp=2, dp=2), {})


def test_failures_with_another_tensor_argument_or_model_parameter_are_another_family(
    families,
) -> None:
    one = families("fc1.bias", Point.of(tp=2), {})
    others = [
        families("fc2.weight", Point.of(tp=2), {}),
        families("fc1.bias", Point.of(tp=2), {"bug": "x"}),
        families("fc1.bias", Point.of({"tp": 2, "layers": 3}), {}),
    ]
    assert one not in others


def test_a_failure_is_not_searched_after_the_search_of_its_family_ran_out_of_time(
    tmp_path: Path,
) -> None:
    double = only("main_grad", "fc1.bias", lambda r, at, part: part * 2)
    found = rung(tmp_path, Point.of(dp=2), double, limit=0)
    comparison = compare(found)
    case = Case(Point.of(dp=2), Program("fit:train"), Settings(localize=60.0), {}, {})
    first = next(f for f in comparison.findings if f.verdict == "fail")
    budget = Budget()
    budget.ran_out(family_of(case, found, first), "t.py::first", 60.0)
    traces: Any = SimpleNamespace(case=case)  # a search would request Runs

    located = localize(traces, traces, found, comparison, budget)

    assert located is not None
    ((label, text),) = located.rows
    assert label == "not localised"
    assert text == (
        "not searched: the failure of t.py::first starts at the same tensor, and its search "
        "stopped at the time limit of 60 s (--trainsafe-localize)"
    )
