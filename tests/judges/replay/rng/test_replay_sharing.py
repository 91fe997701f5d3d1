"""A draw from a generator that another thread uses fails the rule, unless it is ignored."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from pytest_trainsafe import expect_rng
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.replay.rng.ledger_rules import judge_rng
from pytest_trainsafe.trace.rng.events import DrawEvent
from tests.support.replay.ledger_traces import state, write

DRAW = DrawEvent(
    *("torch cpu", "data", state(1), state(2), "uniform_"),
    at="augment.py:7",
    shape=(4,),
    thread="worker-1",
)


def judged(path: Path, event: DrawEvent, **kwargs):
    return judge_rng(write(path, Point.of(), lambda at: [DRAW, event]), **kwargs).findings


@pytest.mark.parametrize(
    ("other", "words"),
    [("MainThread", "and in the main thread at"), ("worker-0", "and in thread 'worker-0' at")],
)
def test_a_generator_shared_by_two_threads_is_reported_with_the_threads_and_the_line(
    tmp_path, other, words
):
    [finding] = judged(tmp_path, msgspec.structs.replace(DRAW, shared=other))

    assert (finding.check, finding.verdict) == ("rng:shared_generator", "fail")
    assert f"in thread 'worker-1' {words} the same time: in step 0, uniform (4) at " in (
        finding.message
    )
    assert finding.source == "augment.py:7"


def test_draws_in_a_thread_with_an_unshared_generator_pass(tmp_path):
    assert judged(tmp_path, DRAW) == ()


def test_the_rule_on_shared_generators_can_be_ignored_with_a_reason(tmp_path):
    rule = expect_rng("augment.py:*", ignore="rng:shared_generator", reason="a lock orders them")

    assert judged(tmp_path, msgspec.structs.replace(DRAW, shared="a"), rules=[rule]) == ()
