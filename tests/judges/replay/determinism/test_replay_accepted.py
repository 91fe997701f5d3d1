"""assert_rng accepts checks of random numbers that are inconclusive, and no failures."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_trainsafe import TrainsafeFailure, assert_rng, expect_rng
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.replay.rng.ledger_rules import judge_rng
from pytest_trainsafe.trace.rng.events import SWITCHED_OFF
from tests.support.replay import rng_programs
from tests.support.replay.ledger_traces import mask, write


def without_ledger(path: Path):
    return write(path, Point.of(), lambda at: [SWITCHED_OFF])


def test_assert_rng_accepts_inconclusive_checks_by_name(tmp_path: Path):
    trace = without_ledger(tmp_path / "a")

    with pytest.raises(TrainsafeFailure, match="inconclusive, so not a pass"):
        assert_rng(trace)
    assert_rng(trace, accept=["rng:unseen"])
    with pytest.raises(ValueError, match="accept takes some of"):
        assert_rng(trace, accept=["rng:unsene"])


def test_accepting_a_check_does_not_accept_that_it_fails(tmp_path: Path):
    trace = write(tmp_path / "a", Point.of(dp=2), lambda at: [mask(5 * at["dp"])])

    with pytest.raises(TrainsafeFailure, match="rng:expected"):
        assert_rng(trace, expect=[expect_rng("drop", same="dp")], accept=["rng:expected"])


def test_an_accepted_check_is_noted(tmp_path: Path):
    judgement = judge_rng(without_ledger(tmp_path / "a")).accepting(["rng:unseen"])

    assert judgement.findings == ()
    assert judgement.not_compared[-1].startswith("rng:unseen, which is accepted: rank 0 has no RNG")


@pytest.mark.trainsafe(
    rng_programs.train,
    dp=2,
    dtype=["float64"],
    expect=[expect_rng("misspelt", same="dp")],
    accept=["rng:expected"],
)
def test_assert_rng_accepts_what_the_marker_accepts_and_notes_it(candidate_trace):
    assert_rng(candidate_trace)

    [note] = [text for text in candidate_trace.runs.notes if "misspelt" in text]
    assert note.startswith("assert_rng did not compare rng:expected, which is accepted: expect_rng")
