"""Slips in what ranks send, clip and divide are noticed, and what is meant is not."""

from __future__ import annotations

import pytest

from pytest_trainsafe.judges.learn.columns.frame import Frame
from pytest_trainsafe.judges.learn.events.slips import SLIP, slip_in
from pytest_trainsafe.judges.learn.relations.conduct.recorded import texts_of
from pytest_trainsafe.judges.learn.run import ObservedRun
from pytest_trainsafe.launch import Launcher
from tests.support.learn.sharing_ranks import pipes, tokens, trunks
from tests.support.learn.two_ranks import Call, runs_of

#: The slips of each program, as it is meant and with a fault.
SLIPS: dict[Call, set[str]] = {
    (pipes, 0, ""): set(),
    (pipes, 0, "kept gradients"): {"sent-again"},
    (pipes, 0, "zeros"): set(),
    (pipes, 0, "new places"): set(),
    (trunks, 0, ""): set(),
    (trunks, 0, "wrapped"): set(),
    (trunks, 0, "shared head"): {"clipped-partly"},
    (trunks, 0, "one layer"): {"clipped-partly"},
    (tokens, 0, "times ranks"): set(),
    (tokens, 0, "averaged"): {"count-averaged"},
    (tokens, 0, "own count"): set(),
    (tokens, 0, "summed by hand"): set(),
    (tokens, 0, "sharded, times ranks"): set(),
    (tokens, 0, "sharded, averaged"): {"count-averaged"},
    (tokens, 0, "sharded, summed"): set(),
}


@pytest.fixture(scope="module", name="runs")
def _runs(run_launcher: Launcher) -> dict[Call, ObservedRun]:
    return dict(zip(SLIPS, runs_of(run_launcher, [*SLIPS]), strict=True))


@pytest.mark.parametrize("call", SLIPS, ids=[f"{each[0].__name__} {each[2]}" for each in SLIPS])
def test_ranks_that_share(call: Call, runs: dict[Call, ObservedRun]) -> None:
    tables = runs[call].tables
    found = {slip_in(text) for table in tables for text in texts_of(Frame(table), SLIP)[1]}
    assert found - {""} == SLIPS[call]
