"""A blamed module with changed parameters, or in another mode, is reported with that condition."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import pytest

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.compare.localize.conditions import unstepped
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.trace.facts import Altered, Site
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.schema import StepEvent
from tests.support.compare.clipped_traces import rung
from tests.support.compare.traces import Bench, only
from tests.support.localize.blamed_traces import (
    blamed,
    calling,
    located_faults,
    noting,
    text_of,
    with_facts,
)

TP = Point.of(tp=2)
STEPS = Site("alter", "/env/site-packages/framework/loop.py:5", "/me/fit.py:30", "_foreach_add_")
EVALUATES = Site("mode", "/me/fit.py:9", name="norm")


ALTERED = (Altered(0, 1, "norm"), STEPS)
EVALUATED = (EVALUATES,)


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> RungTraces:
    """The output of the norm is wrong, in every micro-batch."""
    differs = only("activation", "norm.output", lambda r, at, part: part + 1)
    return calling(rung(tmp_path_factory.mktemp("conditions"), TP, differs), fc1="", norm="")


def in_the_reference_too(rung: RungTraces, *facts: msgspec.Struct) -> RungTraces:
    trace = rung.reference
    ranks = [dataclasses.replace(rank, facts=with_facts(rank, *facts)) for rank in trace.ranks]
    both = dataclasses.replace(rung, reference=Trace(trace.path, trace.manifest, ranks))
    return noting(both, *facts)


def test_parameters_changed_during_the_step_are_reported_with_the_line_that_changes_them(
    wrong: RungTraces,
) -> None:
    altered = noting(wrong, *ALTERED)
    conditions = [fault.condition for fault in blamed(altered) if fault.target == "norm"]
    assert conditions == ["", "altered"]  # of micro-batches 0 and 1
    in_each_microbatch = noting(wrong, Altered(0, 0, "norm"), *ALTERED)
    found = located_faults(in_each_microbatch)
    assert "its parameters have changed since the step began" in text_of(found)
    assert found.source == "/me/fit.py:30"
    assert "through /env/site-packages/framework/loop.py:5" in found.what


def test_a_module_in_evaluation_mode_is_reported_with_the_line_that_sets_the_mode(
    wrong: RungTraces,
) -> None:
    found = located_faults(noting(wrong, *EVALUATED))
    assert "the forward of norm: it runs in evaluation mode" in text_of(found)
    assert (found.source, found.what) == ("/me/fit.py:9", "switches to evaluation mode")


def test_a_condition_that_the_reference_also_has_is_not_reported(wrong: RungTraces) -> None:
    both = in_the_reference_too(wrong, *EVALUATED, *ALTERED, Altered(0, 0, "norm"))
    assert {fault.condition for fault in blamed(both)} == {""}
    assert located_faults(both).what == "module class Norm"


def test_a_module_in_evaluation_mode_only_in_the_reference_is_reported_in_training_mode(
    wrong: RungTraces,
) -> None:
    both = in_the_reference_too(wrong, *EVALUATED)
    text = text_of(located_faults(dataclasses.replace(both, candidate=wrong.candidate)))
    assert "it runs in training mode, and in evaluation mode in the reference" in text


@pytest.mark.parametrize(
    ("made", "text"),
    [
        ([(True, True), (True, False)], "rank 1 leaves out the optimizer's step of step 1"),
        ([(True, True), (False, False)], ""),  # a rank without an optimizer
        ([(True, False), (True, False)], ""),
    ],
)
def test_a_rank_that_leaves_out_a_step_that_others_make_is_named(
    tmp_path: Path, made: list[tuple[bool, ...]], text: str
) -> None:
    trace = Bench(tmp_path).rung(Point.of(dp=2)).candidate
    ranks = [
        dataclasses.replace(
            rank, steps=[StepEvent(n, 2, "", "", did, 0.0) for n, did in enumerate(steps)]
        )
        for rank, steps in zip(trace.ranks, made, strict=True)
    ]
    assert unstepped(trace.with_ranks(ranks)).startswith(text)
    assert bool(unstepped(trace.with_ranks(ranks))) == bool(text)
