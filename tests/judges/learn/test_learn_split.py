"""Ranks that divide data, layers or weights in a wrong way are reported."""

from __future__ import annotations

import pytest

from pytest_trainsafe.judges.learn.check.offline import check
from pytest_trainsafe.judges.learn.columns.frame import Frame
from pytest_trainsafe.judges.learn.events.slips import SLIP, slip_in
from pytest_trainsafe.judges.learn.invariant import Invariant
from pytest_trainsafe.judges.learn.packs.pack import Pack
from pytest_trainsafe.judges.learn.relations.conduct.recorded import texts_of
from pytest_trainsafe.judges.learn.run import ObservedRun
from pytest_trainsafe.launch import Launcher
from tests.support.learn.observed_programs import RULES
from tests.support.learn.split_ranks import (
    halves,
    noisy,
    pairs,
    parts,
    planned,
    readers,
    resumed,
    sampled,
    scales,
    stages,
)
from tests.support.learn.two_ranks import Call, rules_of, runs_of

#: The attributes whose rules break if a program has a fault.
FAULTS = {
    (halves, "one seed"): {"summed"},
    (planned, "own rows"): {"declared", "whole"},
    (readers, "own order"): {"rows"},
    (sampled, "own seed"): {"sampler", "rows"},
    (noisy, "same noise"): {"batch"},
    (scales, "ignored"): {"whole"},
    (parts, "part of rank 0"): {"shards"},
    (stages, "not summed"): {"tables"},
    (resumed, "one state"): {"summed"},
}
#: Unusual programs, in which none of these rules is broken.
CLEAN = [(readers, "all in own order"), (stages, "untied")]
PROGRAMS = [*dict.fromkeys(program for program, _ in FAULTS)]
CALLS: list[Call] = [
    *((program, seed, "") for program in PROGRAMS for seed in (0, 1, 2)),
    *((program, 2, fault) for program, fault in (*FAULTS, *CLEAN)),
    *((pairs, 0, fault) for fault in ("", "own first", "no offset")),
]


@pytest.fixture(scope="module", name="runs")
def _runs(run_launcher: Launcher) -> dict[Call, ObservedRun]:
    return dict(zip(CALLS, runs_of(run_launcher, CALLS), strict=True))


@pytest.fixture(scope="module", name="rules")
def _rules(runs: dict[Call, ObservedRun]) -> list[Invariant]:
    healthy = [runs[program, seed, ""] for program in PROGRAMS for seed in (0, 1)]
    return rules_of(healthy, "alike")


def _broken(run: ObservedRun, rules: list[Invariant]) -> set[str]:
    found = check(run, [Pack("own", tuple(rules))], RULES, min_confidence=0.0)
    assert found.kept
    return {each.invariant.claim.text("attribute") for each in found.violations}


@pytest.mark.parametrize(
    "call",
    [*((program, 2, "") for program in PROGRAMS), *((each, 2, how) for each, how in CLEAN)],
    ids=lambda call: f"{call[0].__name__} {call[2]}".strip(),
)
def test_ranks_without_a_fault_keep_all_rules(
    call: Call, runs: dict[Call, ObservedRun], rules: list[Invariant]
) -> None:
    assert _broken(runs[call], rules) == set()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault[1])
def test_a_fault_breaks_its_rules(
    fault: tuple[object, str], runs: dict[Call, ObservedRun], rules: list[Invariant]
) -> None:
    call = next(each for each in CALLS if (each[0], each[2]) == fault)
    assert _broken(runs[call], rules) == FAULTS[fault]  # type: ignore[index]


@pytest.mark.parametrize(
    ("fault", "slips"),
    [("", set()), ("own first", set()), ("no offset", {"labels-of-another-rank"})],
)
def test_labels_of_gathered_pairs_select_those_of_the_rank(
    fault: str, slips: set[str], runs: dict[Call, ObservedRun]
) -> None:
    tables = runs[pairs, 0, fault].tables
    found = {slip_in(text) for table in tables for text in texts_of(Frame(table), SLIP)[1]}
    assert found - {""} == slips
