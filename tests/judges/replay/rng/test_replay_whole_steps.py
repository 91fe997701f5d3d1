"""Dropout over dp in programs that mark whole steps only, whose forwards have no counterparts."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.replay.rng.ledger_rules import judge_rng
from pytest_trainsafe.sweep.expectation import expect_rng
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.schema import InputEvent, NoteEvent
from tests.support.replay.ledger_traces import mask, write

SINGLE = Point.of()


def record(path: Path, point: Point, batches, number, shape=(4, 8)) -> Trace:
    """A step of several forwards: each reads its own data, and draws from the state `number`."""

    def ledger(at):
        yield NoteEvent("level", "step")
        for forward in range(batches):
            yield InputEvent(0, forward, (f"data {at['dp']} {forward}",))
            yield mask(number(at["dp"], forward), microbatch=None, shape=shape)

    return write(path, point, ledger)


def verdicts(judgement) -> list[tuple[str, str]]:
    return [(finding.check, finding.verdict) for finding in judgement.findings]


@pytest.mark.parametrize(
    ("reference_batches", "reference_shape"),
    [(4, (4, 8)), (2, (8, 8)), (8, (2, 8))],
)
def test_one_seed_is_found_whatever_batches_the_reference_takes(
    tmp_path: Path, reference_batches, reference_shape
):
    reference = record(
        tmp_path / "r", SINGLE, reference_batches, lambda dp, n: n, shape=reference_shape
    )
    one_seed = record(tmp_path / "a", Point.of(dp=2), 2, lambda dp, n: n)
    own_seeds = record(tmp_path / "b", Point.of(dp=2), 2, lambda dp, n: 10 * dp + n)

    assert verdicts(judge_rng(one_seed, reference)) == [("rng:dp_same_dropout", "fail")]
    assert verdicts(judge_rng(own_seeds, reference)) == []


def test_one_seed_is_inconclusive_without_a_reference_unless_it_is_declared(tmp_path: Path):
    one_seed = record(tmp_path / "a", Point.of(dp=2), 2, lambda dp, n: n)
    own_seeds = record(tmp_path / "b", Point.of(dp=2), 2, lambda dp, n: 10 * dp + n)

    judgement = judge_rng(one_seed)
    assert verdicts(judgement) == [("rng:dp_same_dropout", "inconclusive")]
    [finding] = judgement.findings
    assert "it is not known whether each rank draws for its own data" in finding.message
    assert verdicts(judge_rng(one_seed, None, [expect_rng("drop", same="dp")])) == []
    assert verdicts(judge_rng(own_seeds)) == []


def test_ranks_that_draw_the_mask_of_the_whole_batch_may_draw_the_same(tmp_path: Path):
    reference = record(tmp_path / "r", SINGLE, 2, lambda dp, n: n, shape=(8, 8))
    candidate = record(tmp_path / "a", Point.of(dp=2), 2, lambda dp, n: n, shape=(8, 8))

    assert verdicts(judge_rng(candidate, reference)) == []


def test_a_program_that_seeds_before_each_forward_also_on_one_device_is_no_fault(tmp_path: Path):
    reference = record(tmp_path / "r", SINGLE, 4, lambda dp, n: 1)
    candidate = record(tmp_path / "a", Point.of(dp=2), 2, lambda dp, n: 1)

    judgement = judge_rng(candidate, reference)
    assert verdicts(judgement) == []
    [note] = judgement.not_compared
    assert note.startswith("dropout over dp in drop: the program draws the same numbers for")
    assert verdicts(judge_rng(candidate)) == []


def test_ranks_that_read_the_same_data_may_draw_the_same(tmp_path: Path):
    def ledger(at):
        yield NoteEvent("level", "step")
        yield InputEvent(0, 0, ("the same data",))
        yield mask(1, microbatch=None)

    reference = record(tmp_path / "r", SINGLE, 2, lambda dp, n: n)
    candidate = write(tmp_path / "a", Point.of(dp=2), ledger)

    assert verdicts(judge_rng(candidate, reference)) == []
    assert verdicts(judge_rng(candidate)) == []


def test_tp_replicas_are_known_though_the_reference_takes_larger_batches(tmp_path: Path):
    reference = record(tmp_path / "r", SINGLE, 1, lambda dp, n: n, shape=(8, 8))

    def drawn(name, number, shape):
        def ledger(at):
            yield NoteEvent("level", "step")
            for forward in range(2):
                yield mask(number(at["tp"], forward), microbatch=None, shape=shape)

        return verdicts(judge_rng(write(tmp_path / name, Point.of(tp=2), ledger), reference))

    assert drawn("replicas", lambda tp, n: n, (4, 8)) == []
    assert drawn("shards", lambda tp, n: 10 * tp + n, (4, 4)) == []
    assert drawn("split", lambda tp, n: 10 * tp + n, (4, 8)) == [
        ("rng:tp_different_dropout", "fail")
    ]
    assert drawn("shared", lambda tp, n: n, (4, 4)) == [("rng:tp_same_dropout", "fail")]
