"""Tensors that were not compared are listed: unrecorded ones, and those of one trace only."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest
import torch

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.tensor_id import INITIAL
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.guards.not_compared import not_compared
from pytest_trainsafe.judges.compare.guards.vacuity import guard
from pytest_trainsafe.trace.schema import NoteEvent
from tests.support.compare.traces import Bench, Record, healthy, training, write

POINT = Point.of(tp=2)


def test_a_healthy_candidate_has_no_uncompared_tensors(bench: Bench) -> None:
    rung = bench.rung(POINT)
    assert not_compared(rung, compare(rung)) == []


def test_notes_of_uncompared_outputs_are_listed_up_to_a_limit(bench: Bench) -> None:
    notes = [NoteEvent("not_compared", f"fc{i}: output is a Cache") for i in range(6)]
    reported = not_compared(rung := bench.rung(POINT, notes=notes), compare(rung))
    assert reported[0] == "not compared: fc0: output is a Cache"
    assert reported[4:] == ["not compared: and 2 more like these"]


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        (["1.0", "0.5"], "clips its gradients at a norm of 0.5 and 1.0, the reference at 1.0"),
        (["1.0"], ""),
        ([], ""),  # another clip function, of which another sentence speaks
    ],
)
def test_another_limit_of_the_gradient_norm_is_listed(
    bench: Bench, limits: list[str], text: str
) -> None:
    rung = bench.rung(POINT, notes=[NoteEvent("clip_limit", limit) for limit in limits])
    reference = write(bench.path(), training(), notes=[NoteEvent("clip_limit", "1.0")])
    rung = dataclasses.replace(rung, reference=reference)
    reported = not_compared(rung, compare(rung))
    clips = [each for each in reported if "clips its gradients" in each]
    assert clips == ([f"the candidate {text}"] if text else [])


def test_an_unused_annotation_is_listed(bench: Bench) -> None:
    rung = bench.rung(POINT, notes=[NoteEvent("unused_annotation", "the annotation is not used")])
    assert not_compared(rung, compare(rung)) == ["the annotation is not used"]


def test_a_pattern_that_matches_no_module_is_listed(bench: Bench) -> None:
    rung = bench.rung(POINT, notes=[NoteEvent("unmatched_pattern", "nosuch.*")])
    [reported] = not_compared(rung, compare(rung))
    assert reported.startswith("not compared: the activations of 'nosuch.*'")


def test_an_extra_module_call_of_the_candidate_is_listed(bench: Bench) -> None:
    records = training("float32", 0.0)
    again = [
        Record(msgspec.structs.replace(r.id, call=1), r.tensor, r.layout)
        for r in records
        if r.id.kind == "activation" and r.id.module == "fc2"
    ]
    rung = bench.rung(POINT, healthy, records=[*records, *again])
    found = compare(rung)
    assert not found.failed
    [reported] = not_compared(rung, found)
    assert "8 of the candidate's tensors of kind activation have no counterpart in" in reported
    assert reported.endswith("the reference (fc2.output call 1)")


def test_gradients_that_the_candidate_did_not_record_are_listed(bench: Bench) -> None:
    def edit(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor | None:
        lacking = record.id.kind == "activation_grad" and record.id.module == "norm"
        return None if lacking else part

    rung = bench.rung(POINT, edit)
    [reported] = not_compared(rung, compare(rung))
    assert "8 of the reference's tensors of kind activation_grad" in reported
    assert "(norm.output)" in reported


def test_a_module_skipped_on_one_rank_fails_with_that_rank(bench: Bench) -> None:
    """A missing replica is a failure, not a lack of coverage."""

    def edit(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor | None:
        skipped = record.id.kind == "activation" and record.id.module == "norm" and at["tp"] == 1
        return None if skipped else part

    found = compare(bench.rung(POINT, edit))
    assert found.findings[0].check == "missing"
    assert "rank 1 should hold a replica but recorded none" in found.findings[0].message
    pattern = found.findings[0].pattern
    assert pattern is not None
    assert (pattern.name, pattern.short) == ("on some ranks", "computed on rank 0 alone")


def owned(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor | None:
    """As an optimizer does that gives each parameter to one dp rank, which sends it to the others.

    The first rank has the states of the weights, and the second one those of all else.
    """
    owner = 0 if record.id.name.startswith("weight") else 1
    return None if record.id.kind == "optimizer_state" and at["dp"] != owner else part


def test_optimizer_states_that_one_rank_of_dp_has_for_all_are_complete(bench: Bench) -> None:
    rung = bench.rung(Point.of(dp=2), owned)
    found = compare(rung)
    assert not found.failed
    assert found.compared["optimizer_state"]
    assert not_compared(rung, found) == []


def test_a_parameter_that_its_owner_does_not_send_fails_on_the_other_rank(bench: Bench) -> None:
    before = {r.id.path: r.tensor for r in training("float32") if r.id.step == INITIAL}

    def edit(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor | None:
        stale = record.id.kind == "param" and record.id.module == "fc1" and at["dp"] == 1
        return before[record.id.path].to(part.dtype) if stale else owned(record, at, part)

    first = compare(bench.rung(Point.of(dp=2), edit)).findings[0]
    assert first.where is not None
    assert (first.check, first.where.kind, first.where.module) == ("replicas", "param", "fc1")


def test_modules_inside_a_compiled_region_are_listed_and_do_not_fail(bench: Bench) -> None:
    def edit(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor | None:
        flows = record.id.kind in ("activation", "activation_grad")
        return None if flows and record.id.module in ("fc1", "norm") else part

    notes = [NoteEvent("compiled", name) for name in ("fc1", "norm", "never.called")]
    rung = bench.rung(POINT, edit, notes=notes)
    found = compare(rung)

    assert not found.failed
    assert [finding.check for finding in guard(rung, found)] == []
    [reported] = not_compared(rung, found)
    text = "not compared: the activations of 2 modules inside torch.compile (norm, fc1)"
    assert reported == text


def test_a_compiled_model_without_recorded_activations_gets_the_advice_to_watch_it(
    bench: Bench,
) -> None:
    def edit(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor | None:
        return None if record.id.kind in ("activation", "activation_grad") else part

    notes = [NoteEvent("compiled", name) for name in ("fc1", "fc2", "norm")]
    rung = bench.rung(POINT, edit, notes=notes)
    found = compare(rung)

    assert [finding.check for finding in guard(rung, found)] == []
    [reported] = not_compared(rung, found)
    assert reported.endswith("Give ctx.watch the compiled model, so that its output is compared")


def test_a_module_outside_the_compiled_region_must_be_recorded(bench: Bench) -> None:
    def edit(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor | None:
        return None if record.id.kind == "activation" and record.id.module == "fc1" else part

    found = compare(bench.rung(POINT, edit, notes=[NoteEvent("compiled", "norm")]))

    assert found.findings[0].check == "missing"


def test_a_program_recorded_by_whole_steps_is_listed(bench: Bench) -> None:
    rung = bench.rung(POINT, notes=[NoteEvent("level", "step")])
    [reported] = not_compared(rung, compare(rung))
    assert reported.startswith("only whole steps were compared, no activations and no gradients of")
    assert reported.endswith("ctx.watch has level='step'")


def test_a_side_that_announces_no_clipping_is_told_how_to(bench: Bench) -> None:
    rung = bench.rung(POINT, notes=[NoteEvent("clipped", "clip_grad_norm_")])
    [reported] = not_compared(rung, compare(rung))
    assert "with clip_grad_norm_, the reference with no function that it announces" in reported
    assert reported.endswith("announces its own clipping by ctx.before_clip(norm, limit)")
