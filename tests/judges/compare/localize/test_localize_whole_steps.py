"""In whole steps the line that multiplies gradients by the factor of their error is named."""

from __future__ import annotations

import dataclasses
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.fault.located import Located
from pytest_trainsafe.judges.compare.localize.budget import Budget
from pytest_trainsafe.judges.compare.localize.search import localize
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.trace.facts import Site
from pytest_trainsafe.trace.reader import Trace, TraceError
from tests.support.compare.clipped_traces import rung
from tests.support.compare.traces import Edit, draw, only
from tests.support.localize.blamed_traces import PROGRAM, noting, text_of

DDP = Site("wrapper", "/me/fit.py:21", name="DistributedDataParallel")
HALVES = Site("write", "/me/fit.py:37", name="div_", factor=0.5)
ADDS = Site("write", "/me/fit.py:38", name="add_")


def unmarked(trace: Trace) -> Trace:
    """The trace as if the program had marked no micro-batch."""
    ranks = [
        dataclasses.replace(
            rank, steps=[msgspec.structs.replace(step, microbatches=0) for step in rank.steps]
        )
        for rank in trace.ranks
    ]
    return trace.with_ranks(ranks)


def halved(change: Edit) -> Any:
    @pytest.fixture(scope="module")
    def made(tmp_path_factory: pytest.TempPathFactory) -> RungTraces:
        edit = only("main_grad", "fc1.bias", change)
        found = noting(rung(tmp_path_factory.mktemp("whole"), Point.of(dp=2), edit, limit=0), DDP)
        return dataclasses.replace(
            found, candidate=unmarked(found.candidate), reference=unmarked(found.reference)
        )

    return made


half = halved(lambda record, at, part: part / 2)
noise = halved(lambda record, at, part: part + draw("noise", part.shape))


def report(
    given: RungTraces, *lines: Site, both: tuple[Site, ...] = (), fails: bool = False
) -> tuple[Located, int]:
    """What is said if a Run with replaced tensors records `lines`, and how many such Runs ran."""
    started: list[str] = []

    def traces(trace: Trace, sites: tuple[Site, ...]) -> Any:
        known = noting(dataclasses.replace(given, candidate=trace), *sites).candidate

        def rewritten(dtype: str, rewrite: object) -> Future[Any]:
            assert rewrite
            started.append(dtype)
            run: Future[Any] = Future()
            if fails:
                run.set_exception(TraceError("no values"))
            else:
                run.set_result(SimpleNamespace(trace=known))
            return run

        case = Case(Point.of(dp=2), PROGRAM, Settings(localize=60.0), {}, {})
        runs = SimpleNamespace(held_up=lambda: 0.0)
        full = SimpleNamespace(at=lambda dtype: trace)
        return SimpleNamespace(case=case, runs=runs, in_full=lambda: full, rewritten=rewritten)

    ours, theirs = traces(given.candidate, (*lines, *both)), traces(given.reference, both)
    found = localize(ours, theirs, given, compare(given), Budget())
    assert found is not None
    return found, len(started)


def test_a_line_that_divides_gradients_once_more_is_named_instead_of_the_wrapper(
    half: RungTraces,
) -> None:
    found, runs = report(half, HALVES)
    assert (found.source, runs) == (HALVES.at, 2)
    assert found.faults == (("reduction", "fc1.bias"),)
    assert "the gradients of fc1.bias are changed between their backward and the" in text_of(found)


@pytest.mark.parametrize("lines", [{"both": (HALVES,)}, {"lines": (ADDS,)}, {"fails": True}])
def test_without_such_a_line_the_wrapper_is_named(half: RungTraces, lines: dict[str, Any]) -> None:
    found, runs = report(half, *lines.pop("lines", ()), **lines)
    assert (found.source, runs) == (DDP.at, 2)
    assert "only whole steps were compared" in text_of(found)


def test_no_run_is_started_for_gradients_that_are_no_multiple(noise: RungTraces) -> None:
    found, runs = report(noise, HALVES)
    assert (found.source, runs) == (DDP.at, 0)
