"""Which draws an expectation compares, and that one that compares none is no pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.replay.rng.ledger_rules import judge_rng
from pytest_trainsafe.sweep.expectation import expect_rng
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.rng.events import SWITCHED_OFF, DrawEvent, Phase
from tests.support.replay.ledger_traces import mask, state, write


def drawn(path: Path, *events) -> Trace:
    """A trace at dp=2 with these events on each rank; one may be a function of the rank."""
    return write(
        path, Point.of(dp=2), lambda at: [e(at["dp"]) if callable(e) else e for e in events]
    )


def line(number: int, phase: Phase = "data", at: str = "train.py:9") -> DrawEvent:
    """A draw outside of modules, from the state of a number."""
    return DrawEvent("torch cpu", phase, state(number), state(number + 1), "normal_", at=at)


def of_numpy(number: int) -> DrawEvent:
    """A draw of a NumPy generator, seen only in its state."""
    name = "numpy.random.Generator of train.py:12, number 2"
    return DrawEvent(name, "data", state(number), state(number + 1))


def verdicts(judgement) -> list[tuple[str, str]]:
    return [(finding.check, finding.verdict) for finding in judgement.findings]


BROKEN = [("rng:expected", "fail")]
EMPTY = [("rng:expected", "inconclusive")]


@pytest.mark.parametrize(
    ("phase", "words"),
    [
        ("initialisation", "in the initialisation, normal"),
        ("evaluation", "in an evaluation before step 0, normal"),
        ("save", "in a save before step 0, normal"),
        ("load", "in a load before step 0, normal"),
        ("data", "in step 0, normal"),
    ],
)
def test_an_expectation_compares_the_draws_of_every_phase(tmp_path: Path, phase, words):
    rule = expect_rng("train.py:9", same="dp")
    apart = drawn(tmp_path / "a", lambda dp: line(5 * dp, phase))
    alike = drawn(tmp_path / "b", line(5, phase))

    judgement = judge_rng(apart, None, [rule])
    assert verdicts(judgement) == BROKEN
    assert words in judgement.findings[0].message
    assert verdicts(judge_rng(alike, None, [rule])) == []


def test_initial_values_may_be_alike_where_the_draws_of_training_have_to_differ(tmp_path: Path):
    trace = drawn(tmp_path / "a", line(1, "initialisation"), lambda dp: line(10 + 5 * dp))

    assert verdicts(judge_rng(trace, None, [expect_rng("train.py:*", different="dp")])) == []
    assert verdicts(judge_rng(trace, None, [expect_rng("*", different="dp")])) == []


def test_a_draw_of_numpy_without_a_line_is_found_at_the_line_of_its_generator(tmp_path: Path):
    rule = expect_rng("train.py:12", different="dp")

    assert verdicts(judge_rng(drawn(tmp_path / "a", of_numpy(1)), None, [rule])) == BROKEN
    apart = drawn(tmp_path / "b", lambda dp: of_numpy(5 * dp))
    assert verdicts(judge_rng(apart, None, [rule])) == []


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (expect_rng("typo.py:*", same="dp"), "no draw matches; draws are made in train.py:9, drop"),
        (expect_rng("typo", different=["dp", "tp"]), "compares nothing over dp, because no draw"),
        (
            expect_rng("again.py:*", same="dp"),
            "the draws that match are all made in recomputations",
        ),
        (expect_rng("alone", different="dp"), "no two ranks along it make draws that match"),
    ],
)
def test_an_expectation_that_compares_nothing_is_inconclusive(tmp_path: Path, rule, words):
    trace = drawn(
        tmp_path / "a",
        line(1),
        lambda dp: mask(20 + dp, microbatch=dp),
        line(3, "recomputation", "again.py:1"),
        lambda dp: line(30 + dp, at="rank.py:1") if dp else mask(30, module="alone"),
    )

    judgement = judge_rng(trace, None, [rule])
    assert verdicts(judgement) == EMPTY
    assert words in judgement.findings[0].message


def test_an_expectation_over_an_axis_of_one_rank_does_not_apply_and_is_noted(tmp_path: Path):
    trace = drawn(tmp_path / "a", line(1))

    for where in ("train.py:9", "module_of_tp_only"):
        judgement = judge_rng(trace, None, [expect_rng(where, same="tp")])
        assert judgement.findings == ()
        [note] = judgement.not_compared
        assert note == f"expect_rng({where!r}) over tp, because there is only one rank along it"


def test_without_a_ledger_only_the_missing_ledger_is_inconclusive(tmp_path: Path):
    judgement = judge_rng(drawn(tmp_path / "a", SWITCHED_OFF), None, [expect_rng("x", same="dp")])

    assert verdicts(judgement) == [("rng:unseen", "inconclusive")]
