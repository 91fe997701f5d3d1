"""Beside a module or parameter at fault, the report names its functions, calls and class."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import pytest

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.compare.fault.clause import words
from pytest_trainsafe.judges.compare.localize.code.lines import NOWHERE
from pytest_trainsafe.judges.compare.localize.code.owners import communication, copies
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.trace.facts import Applied, CollectiveEvent, SetUp, Site
from pytest_trainsafe.trace.schema import ModuleEvent, TensorEvent
from tests.support.compare.clipped_traces import rung
from tests.support.compare.traces import only
from tests.support.localize.blamed_traces import described, located_faults, noting
from tests.support.localize.said import said
from tests.support.localize.stack_program import Scale, train

SCALE = Applied("fc1", "Scale", "/me/scale.py:5", "/me/scale.py:9")
SUMMED = CollectiveEvent(
    "all_reduce", (0, 1), "/me/talk.py:3", step=0, reduce="SUM", caller="/me/up.py:7"
)


def wrong_in(kind: str, path: str, folder: Path, point: Point | None = None) -> RungTraces:
    """A rung in which one tensor's values are doubled."""
    double = only(kind, path, lambda record, at, part: part * 2)
    return rung(folder, point or Point.of(tp=2), double, limit=0)


@pytest.mark.trainsafe(train, tp=2, bug="between backward", dtype=["float64"])
def test_a_wrong_backward_names_the_backward_of_the_functions_that_its_module_applies(
    trainsafe, search
):
    found = search()
    rewritten = found.rewritten()
    _, faults = found.judge(rewritten)
    assert [(fault.phase, fault.target) for fault in faults] == [("backward", "blocks.1")]
    events = [e for rank in rewritten.candidate.ranks for e in rank.events_of(Applied)]
    own = {(event.module, event.name) for event in events}
    # Each module has the functions of its own code, and not those of the modules that it calls.
    assert ("blocks.1", "Scale") in own
    assert ("blocks.0", "Scale") not in own
    # The input of the first module has no gradient, so its sum of gradients is in no graph.
    sums = {f"blocks.{number}.{part}" for number in range(3) for part in ("up", "down")}
    assert {module for module, name in own if name == "Sum"} == sums - {"blocks.0.up"}
    line = Scale.backward.__code__.co_firstlineno
    assert all(e.backward.endswith(f".py:{line}") for e in events if e.name == "Scale")


def test_a_wrong_forward_names_the_forward_of_its_functions(tmp_path: Path) -> None:
    found = located_faults(noting(wrong_in("activation", "fc1.output", tmp_path), SCALE))
    assert "; its forward runs Scale.forward at /me/scale.py:5" in found.what


def test_functions_of_another_module_are_not_named(tmp_path: Path) -> None:
    other = msgspec.structs.replace(SCALE, module="fc2")
    found = located_faults(noting(wrong_in("activation", "fc1.output", tmp_path), other))
    assert "runs" not in found.what


def test_a_forward_names_the_collectives_between_the_module_before_and_its_output(
    tmp_path: Path,
) -> None:
    trace = wrong_in("activation", "fc1.output", tmp_path).candidate
    events: list = []
    for event in trace.ranks[0].events:
        if isinstance(event, TensorEvent) and event.id.kind == "activation":
            if event.id.module == "fc1":
                events.append(SUMMED)
            if event.id.module == "fc2":
                events.append(msgspec.structs.replace(SUMMED, site="/me/other.py:3"))
        events.append(event)
    trace = trace.with_ranks([dataclasses.replace(trace.ranks[0], events=events)])
    assert words(communication(trace, "fc1", "/me/model.py:1")) == (
        "its forward calls all_reduce(SUM) over tp at /me/talk.py:3, called at /me/up.py:7"
    )
    assert "/me/other.py:3" in words(communication(trace, "fc2", "/me/model.py:1"))
    assert communication(trace, "norm", "/me/model.py:1") == []


def test_wrong_gradients_of_modules_of_one_class_name_the_class(tmp_path: Path) -> None:
    norm = ModuleEvent("norm", "Norm", "/me/norm.py:15")
    wrong = described(wrong_in("main_grad", "norm.weight", tmp_path, Point.of(dp=2)), norm)
    found = located_faults(noting(wrong, Site("step", "/me/fit.py:40")))
    assert "; the class of its module, Norm, is at /me/norm.py:15" in found.what


def test_a_parameter_that_two_stages_hold_names_where_the_later_stage_sets_it_up(
    tmp_path: Path,
) -> None:
    wrong = wrong_in("main_grad", "fc1.bias", tmp_path, Point.of(pp=2))
    first, last = SetUp("fc1", "/me/first.py:3"), SetUp("fc1", "/me/stages.py:9")
    ranks = []
    for rank, placed in zip(wrong.candidate.ranks, (first, last), strict=True):
        ranks.append(dataclasses.replace(rank, facts={**rank.facts, SetUp: [placed]}))
    trace = wrong.candidate.with_ranks(ranks)
    source, what = said(copies(trace, ["fc1.bias"]))
    assert said(copies(trace, ["fc1.bias"], "pp")) == (source, what)
    assert copies(trace, ["fc1.bias"], "dp") == NOWHERE
    assert source == "/me/stages.py:9"
    assert what == (
        "sets up the copy of fc1 on the stage pp=1; the stage pp=0 sets up its copy at "
        "/me/first.py:3; no call that reduces the gradient of the copies over pp was seen"
    )


def test_a_parameter_of_one_stage_has_no_copies(tmp_path: Path) -> None:
    trace = wrong_in("main_grad", "fc1.bias", tmp_path, Point.of(dp=2)).candidate
    assert copies(trace, ["fc1.bias"]) == NOWHERE
