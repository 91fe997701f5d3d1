"""Each planted RNG fault is reported, and the same programs without a fault pass."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_trainsafe import TrainsafeFailure, assert_rng
from pytest_trainsafe.judges.replay.rng.ledger_rules import judge_rng
from pytest_trainsafe.trace.rng.events import DrawEvent

#: Program, fault, Point, the check that reports it, and words of its message.
FAULTS: list[tuple[str, str, dict[str, Any], str, str]] = [
    (
        *("train", "one seed for all data-parallel ranks", {"dp": 2}, "rng:dp_same_dropout"),
        "rank 0 in step 0, micro-batch 0, bernoulli (2x4x8) in drop at ",
    ),
    (
        *("train", "one seed for all context-parallel ranks", {"cp": 2}, "rng:cp_same_dropout"),
        "in step 0, micro-batch 0, bernoulli (2x2x8) in drop at ",
    ),
    (
        *("train", "one stream in a sharded region", {"tp": 2}, "rng:tp_same_dropout"),
        "in step 0, micro-batch 0, bernoulli (2x4x8) in inner_drop at ",
    ),
    (
        *("train", "another seed on each tensor-parallel rank", {"tp": 2}),
        *("rng:tp_different_dropout", "rank 0 draws from torch cpu, seed 5"),
    ),
    (
        *("drops_dtensors", "one stream in a sharded region", {"tp": 2}, "rng:tp_same_dropout"),
        "in step 0, micro-batch 0, bernoulli (2x4x8) in inner_drop at ",
    ),
    (
        *("drops_dtensors", "another seed on each rank", {"tp": 2}, "rng:tp_different_dropout"),
        "in step 0, micro-batch 0, bernoulli (2x4x8) in drop at ",
    ),
    (
        *("draws_its_parameters", "on every rank its own", {"dp": 2}, "rng:initialisation"),
        "ranks 0, 1 of dp begin with different copies of weight",
    ),
    (
        *("train", "recomputes without the random state", {"recompute": True}),
        *("rng:recomputation", "in step 0, micro-batch 0, bernoulli (2x4x8) in drop at "),
    ),
    (
        *("train", "drops in evaluation mode", {}, "rng:evaluation_dropout"),
        "before step 1: bernoulli (2x4x8) in the root module at ",
    ),
    (
        *("train", "evaluates in training mode", {}, "rng:evaluation_dropout"),
        "before step 1: bernoulli (2x4x16) in inner_drop at ",
    ),
    (
        *("train", "evaluates from the training's stream", {}, "rng:evaluation_shift"),
        "normal (2x4x8) at ",
    ),
    (
        *("loads_with_workers", "a copy in every worker", {}, "rng:workers"),
        "Noisy.rng from state ",
    ),
    (
        *("loads_with_workers", "one global seed", {}, "rng:workers"),
        "workers 0 and 1 of the data loader made at ",
    ),
]

HEALTHY: list[tuple[str, str, dict[str, Any]]] = [
    ("train", "", {"dp": 2}),
    ("train", "", {"tp": 2}),
    ("train", "", {"cp": 2}),
    ("train", "", {"dp": 2, "recompute": True}),
    ("draws_its_parameters", "", {"dp": 2}),
    ("draws_its_parameters", "then broadcast", {"dp": 2}),
    ("draws_its_own_shards", "", {"dp": 2}),
    ("drops_dtensors", "", {"tp": 2}),
    ("train", "", {}),
    ("train", "", {"recompute": True}),
    ("loads_with_workers", "", {}),
]


@pytest.mark.parametrize("with_reference", [True, False])
@pytest.mark.parametrize(("name", "fault", "point", "check", "words"), FAULTS)
def test_a_planted_rng_fault_is_the_only_finding(
    recorded, name, fault, point, check, words, with_reference
):
    reference = recorded("train") if with_reference and name == "train" else None

    [finding] = judge_rng(recorded(name, fault, **point), reference).findings

    assert (finding.verdict, finding.judge, finding.check) == ("fail", "replay", check)
    assert words in finding.message
    assert finding.pattern is not None
    assert finding.pattern.cause
    assert finding.source.partition(":")[0].endswith("rng_programs.py") or check == "rng:workers"


@pytest.mark.parametrize("with_reference", [True, False])
@pytest.mark.parametrize(("name", "fault", "point"), HEALTHY)
def test_a_program_without_fault_has_no_finding_and_every_draw_is_judged(
    recorded, name, fault, point, with_reference
):
    reference = recorded("train") if with_reference and name == "train" else None
    judgement = judge_rng(recorded(name, fault, **point), reference)

    assert judgement.findings == ()
    assert judgement.not_compared == ()


def test_the_program_without_fault_draws_in_both_dropouts_and_in_the_recomputation(recorded):
    phases = {
        (e.phase, e.module)
        for e in recorded("train", dp=2, recompute=True).ranks[0].events_of(DrawEvent)
    }

    assert {("forward", "inner_drop"), ("forward", "drop"), ("recomputation", "drop")} <= phases


def test_draws_on_dtensors_are_recorded_with_the_shapes_of_the_local_tensors(recorded):
    def drawn(name, phase, **point):
        events = recorded(name, **point).ranks[1].events_of(DrawEvent)
        return [(e.operator, e.module, e.shape) for e in events if e.phase == phase]

    assert drawn("drops_dtensors", "forward", tp=2) == [
        ("bernoulli_.float", "inner_drop", (2, 4, 8)),
        ("bernoulli_.float", "drop", (2, 4, 8)),
    ]
    initial = drawn("draws_its_own_shards", "initialisation", dp=2)
    assert ("uniform_", None, (4, 8)) in initial


def test_the_report_names_the_check_and_the_correction(recorded):
    faulty = recorded("train", "one seed for all data-parallel ranks", dp=2)

    with pytest.raises(TrainsafeFailure) as caught:
        assert_rng(faulty, recorded("train"))

    report = str(caught.value)
    assert report.startswith(
        "trainsafe: tests.support.replay.rng_programs:train at dp=2 draws its random numbers wrong"
    )
    assert "rng:dp_same_dropout" in report
    assert "add the rank on dp to the seed" in " ".join(report.split())
    assert max(map(len, report.splitlines())) <= 100 or "/" in report
    assert [finding.check for finding in caught.value.findings] == ["rng:dp_same_dropout"]
