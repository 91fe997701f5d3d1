"""A sum of one number that runs before any gradient exists, such as of tokens, is no norm's.

Otherwise the line of the count would be blamed for a wrong gradient norm.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import pytest

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.compare.localize.code.places import Places
from pytest_trainsafe.judges.compare.localize.gradients import before_gradients
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.trace.facts import CollectiveEvent, Reduction
from pytest_trainsafe.trace.reader import RankTrace, Trace
from tests.support.compare.clipped_traces import rung
from tests.support.localize.blamed_traces import PROGRAM, noting

LINE = "/me/fit.py:17"
NUMBER = Reduction("all_reduce(SUM)", ("dp",), LINE, "", 1, "norm")
CALL = CollectiveEvent("all_reduce", (0, 1), LINE, step=0, reduce="SUM", shape=(1,))


@pytest.fixture
def healthy(tmp_path: Path) -> RungTraces:
    return noting(rung(tmp_path, Point.of(dp=2)), NUMBER)


def calling(trace: Trace, first: bool, last: bool) -> Trace:
    """The trace as if LINE had been called at the beginning or the end of what was recorded."""

    def events(rank: RankTrace) -> list[msgspec.Struct]:
        return [*[CALL] * first, *rank.events, *[CALL] * last]

    return trace.with_ranks([dataclasses.replace(r, events=events(r)) for r in trace.ranks])


@pytest.mark.parametrize(
    ("first", "last", "listed"),
    [(True, False, []), (False, True, [NUMBER]), (True, True, [NUMBER])],
)
def test_only_a_line_that_runs_when_gradients_exist_is_listed_for_the_norm(
    healthy: RungTraces, first: bool, last: bool, listed: list[Reduction]
) -> None:
    candidate = calling(healthy.candidate, first, last)
    assert Places(candidate, PROGRAM, healthy.reference).listed("norm", []) == listed


def test_a_program_that_records_no_gradients_of_micro_batches_does_not_show_when_they_arrive(
    tmp_path: Path,
) -> None:
    whole = rung(tmp_path, Point.of(dp=2), without=lambda id: id.kind == "param_grad")
    assert before_gradients(calling(whole.candidate, True, False)) == set()
