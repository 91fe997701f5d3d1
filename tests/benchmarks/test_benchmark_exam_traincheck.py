"""What counts as caught in the exam of TrainCheck, and what its scripts are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks" / "learn_exam"


@pytest.fixture(autouse=True)
def exam(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FOLDER)


def row(faulty: bool, twin: dict[str, int], bug: dict[str, int], **own: Any) -> dict[str, Any]:
    verdict = {"faulty": faulty, "twin": twin, "bug": bug, "seconds": {"infer": 2.0, "check": 1.0}}
    return {**verdict, "own": {"seconds": 5.0, **own}}


def test_a_violation_of_an_order_of_calls_is_an_alarm_that_the_filter_drops() -> None:
    from _exam_peer import alarms

    counts = {"APIContainRelation": 2, "FunctionCoverRelation": 3, "FunctionLeadRelation": 1}

    assert (alarms(counts, "all"), alarms(counts, "filtered")) == (6, 2)


def test_a_log_of_a_check_gives_each_violated_invariant_once_with_its_relation() -> None:
    from _exam_peer import relations_of, violated

    one = {"relation": "APIContainRelation", "params": [{"api": "{step}"}]}
    other = {"relation": "FunctionLeadRelation", "params": []}
    log = "".join(
        json.dumps({"invariant": each, "trace": [{"value": float("nan")}]}, indent=4) + "\n"
        for each in (one, other, one)
    )

    broken = violated(log)

    assert relations_of(broken) == {"APIContainRelation": 1, "FunctionLeadRelation": 1}
    assert violated("") == {}


def test_a_mistake_is_caught_by_what_its_twin_keeps_and_a_twin_that_violates_is_an_alarm() -> None:
    from bench_exam_traincheck import counted

    caught = row(True, {}, {"APIContainRelation": 1}, caught=True, alarms=False)
    by_order = row(True, {"ConsistencyRelation": 1}, {"FunctionLeadRelation": 4}, caught=False)
    healthy = row(False, {"FunctionCoverRelation": 2}, {})
    rows = [caught, by_order, healthy]

    assert counted(rows, "all")[1:] == ["2 of 2", "1 of 2", "1 of 1", "3"]
    assert counted(rows, "filtered")[1:] == ["1 of 2", "1 of 2", "0 of 1", "3"]
    assert counted(rows, "own2")[1:] == ["1 of 2", "0 of 2", "0 of 1", "5"]


def test_the_peer_gets_the_program_with_a_call_and_the_variables_that_it_can_find() -> None:
    from _exam_peer import assigned, script

    source = "from __future__ import annotations\nimport torch\nnet: int = 1\na, b = c = 2, 3\n"

    assert script(source, {"seed": 1, "healthy": True}).startswith("import torch\n")
    assert script(source, {"seed": 1}).endswith("train(seed=1)\n")
    assert assigned(source) == {"a", "b", "c"}


def test_programs_on_ranks_come_last_in_an_order_that_a_seed_draws() -> None:
    from bench_exam_traincheck import drawn
    from exam_sets import SETS, halves

    names = [each.name for each in drawn(0)]
    worlds = [each.world for each in drawn(0)]

    assert worlds == sorted(worlds)
    assert names != [each.name for each in drawn(1)]
    left = {each.name for part in halves(1, 40)[1] for each in part}
    every = {each.name for part in SETS[1] for each in part}
    half = {each.name for part in halves(1, 40)[0] for each in part}
    assert (set(names), left & half, left | half) == (left, set(), every)
