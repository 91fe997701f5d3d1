"""Recorded facts that clear the code at fault name the more suspect line beside it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.fault.clause import words
from pytest_trainsafe.judges.compare.localize.blame import PROGRAM, Fault
from pytest_trainsafe.judges.compare.localize.code.lines import calls_of_loss
from pytest_trainsafe.judges.compare.localize.code.sharper import entered, of_no_axis, sharper
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.trace.facts import Applied, CollectiveEvent, Reduction, SetUp
from pytest_trainsafe.trace.schema import ModuleEvent, TensorEvent
from tests.support.compare.clipped_traces import rung
from tests.support.compare.traces import only
from tests.support.localize.blamed_traces import described, located_faults, noting

TP = Point.of(tp=2)
CALL = CollectiveEvent("all_reduce", (0, 1), "/me/loss.py:3", step=0, reduce="SUM")


def wrong_in(kind: str, path: str, folder: Path, point: Point = TP) -> RungTraces:
    """A rung in which one tensor's values are doubled."""
    double = only(kind, path, lambda record, at, part: part * 2)
    return rung(folder, point, double, limit=0)


def test_other_modules_of_the_class_that_agree_point_to_what_the_wrong_one_is_set_up_with(
    tmp_path: Path,
) -> None:
    wrong = noting(wrong_in("activation", "fc2.output", tmp_path), SetUp("fc2", "/me/net.py:9"))
    linear = ModuleEvent("fc2", "Linear", "/me/linear.py:3")
    found = located_faults(described(wrong, linear, msgspec.structs.replace(linear, module="fc1")))
    clause = "; fc1 of the same class agrees, so look at what this one is set up with, at /me/net.p"
    assert clause in found.what
    assert found.what.count("/me/net.py:9") == 1
    other = ModuleEvent("fc1", "Other", "/me/other.py:3")
    assert "same class" not in located_faults(described(wrong, linear, other)).what


def test_a_call_over_another_axis_between_the_calls_that_make_the_loss_is_named(
    tmp_path: Path,
) -> None:
    wrong = wrong_in("loss", "loss", tmp_path, Point.of(tp=2, dp=2))
    calls = [
        CALL,
        msgspec.structs.replace(CALL, ranks=(0, 2), site="/me/loss.py:5"),
        msgspec.structs.replace(CALL, site="/me/loss.py:7"),
    ]
    fault, text = Fault("backward", PROGRAM), "no single axis: the fault also occurs at tp=1"

    def traced(events: list[CollectiveEvent]):
        trace = wrong.candidate
        first = trace.ranks[0].events
        at = next(
            i for i, e in enumerate(first) if isinstance(e, TensorEvent) and e.id.kind == "loss"
        )
        changed = dataclasses.replace(trace.ranks[0], events=[*first[:at], *events, *first[at:]])
        return trace.with_ranks([changed, *trace.ranks[1:]])

    inner, outer = "tp", "dp"
    trace, comparison = traced(calls), compare(wrong)
    assert words(sharper(trace, {}, [fault], comparison, ())) == (
        f"all_reduce(SUM) over {outer} is called at /me/loss.py:5, between calls over {inner}"
    )
    assert of_no_axis(text, trace, fault) == (
        f"{text}; the loss is computed with all_reduce(SUM) over {outer} at /me/loss.py:5, between "
        f"calls over {inner}"
    )
    assert of_no_axis("tp: at tp=1 the fault is gone", trace, fault).endswith("gone")
    assert sharper(traced(calls[:2]), {}, [fault], comparison, ()) == []


def test_a_sum_that_runs_in_a_backward_whose_gradients_are_not_summed_is_named(
    tmp_path: Path,
) -> None:
    def part_of(record, at, part):
        return part * (0.25 if at["tp"] else 0.75)

    halves = only("activation_grad", "fc2.output", part_of)
    wrong = rung(tmp_path, TP, halves, limit=0)
    summed = msgspec.structs.replace(
        CALL, backward=True, site="/me/talk.py:3", caller="/me/up.py:7"
    )
    applied = Applied("fc1", "Up", "/me/up.py:2", "/me/up.py:5")
    trace, fault = noting(wrong, applied, summed).candidate, Fault("backward", "fc1")
    assert words(sharper(trace, {}, [fault], compare(wrong), ())) == (
        "all_reduce(SUM) over tp is called in it at /me/up.py:7, so its result may not be what "
        "is returned"
    )
    elsewhere = noting(wrong, applied).candidate
    assert sharper(elsewhere, {}, [fault], compare(wrong), ()) == []
    # A checkpoint runs forwards again in the backward: the call is one of the next function's.
    recomputed = Applied("fc1", "Down", "/me/up.py:6", "/me/up.py:9")
    again = noting(wrong, applied, recomputed, summed).candidate
    assert sharper(again, {}, [fault], compare(wrong), ()) == []


def test_the_first_wrong_output_of_a_submodule_is_said_to_be_given_a_wrong_input(
    tmp_path: Path,
) -> None:
    failing = compare(wrong_in("activation", "fc1.output", tmp_path)).findings
    assert entered(Fault("forward", "", between=True), failing) == ", which is the input of fc1"
    assert entered(Fault("forward", "fc1", between=True), failing) == ""
    assert entered(Fault("backward", "", between=True), failing) == ""


def test_a_factor_explains_an_asynchronous_reduction(tmp_path: Path) -> None:
    made = Reduction("all_reduce(SUM)", ("dp",), "/me/talk.py:3", "", 16, asynchronous=True)
    wrong = wrong_in("main_grad", "fc1.bias", tmp_path, Point.of(dp=2))
    assert "async" not in located_faults(noting(wrong, made)).what


def test_calls_in_groups_of_one_rank_and_after_the_backward_do_not_make_the_loss(
    tmp_path: Path,
) -> None:
    """A pipeline schedule runs the backward before the program reports the losses."""
    trace = wrong_in("loss", "loss", tmp_path, Point.of(tp=2, dp=2)).candidate
    alone = msgspec.structs.replace(CALL, ranks=(0,), site="/me/loss.py:4")
    sent = msgspec.structs.replace(CALL, op="send", reduce="", peer=1, site="/me/loss.py:5")
    norm = msgspec.structs.replace(CALL, site="/me/loss.py:9")
    rank = trace.ranks[0]

    def of(kind: str) -> int:
        events = enumerate(rank.events)
        return next(i for i, e in events if isinstance(e, TensorEvent) and e.id.kind == kind)

    loss, begins = rank.events[of("loss")], rank.events[of("activation_grad")]
    without = [event for event in rank.events if event is not loss]
    at = without.index(begins)
    late = [*without[:at], alone, sent, CALL, begins, norm, loss]
    changed = trace.with_ranks([dataclasses.replace(rank, events=late), *trace.ranks[1:]])
    assert calls_of_loss(changed) == [("all_reduce(SUM)", "tp", "/me/loss.py:3")]


def test_the_calls_that_make_the_loss_are_those_of_a_rank_that_has_one(tmp_path: Path) -> None:
    trace = wrong_in("loss", "loss", tmp_path).candidate
    first, second = trace.ranks
    kept = [e for e in first.events if not (isinstance(e, TensorEvent) and e.id.kind == "loss")]
    tensors = {id: event for id, event in first.tensors.items() if id.kind != "loss"}
    early = dataclasses.replace(first, events=[*kept, CALL], tensors=tensors)
    assert calls_of_loss(trace.with_ranks([early, second])) == []
