"""Ranks that clip, scale or count on their own, where they should do so together, are reported."""

from __future__ import annotations

import pytest

from pytest_trainsafe.judges.learn.check.offline import check
from pytest_trainsafe.judges.learn.invariant import Invariant
from pytest_trainsafe.judges.learn.packs.pack import Pack
from pytest_trainsafe.judges.learn.relations.conduct import histories
from pytest_trainsafe.judges.learn.run import ObservedRun
from pytest_trainsafe.launch import Launcher
from tests.support.learn.observed_programs import RULES
from tests.support.learn.sharing_ranks import counts, halved, scaled
from tests.support.learn.two_ranks import Call, rules_of, runs_of

#: The attribute whose rule breaks if a program has a fault, and in which step.
FAULTS = {
    (halved, "own norm"): ("norm", 1),  # once is chance
    (scaled, "own scaler"): ("left_out", 1),
    (counts, "own shares"): ("buffers", 1),
}
PROGRAMS = [program for program, _ in FAULTS]
CALLS: list[Call] = [
    *((program, seed, "") for program in PROGRAMS for seed in (0, 1, 2)),
    *((program, 2, fault) for program, fault in FAULTS),
]


@pytest.fixture(scope="module", name="runs")
def _runs(run_launcher: Launcher) -> dict[Call, ObservedRun]:
    return dict(zip(CALLS, runs_of(run_launcher, CALLS), strict=True))


@pytest.fixture(scope="module", name="rules")
def _rules(runs: dict[Call, ObservedRun]) -> list[Invariant]:
    healthy = [runs[program, seed, ""] for program in PROGRAMS for seed in (0, 1)]
    return rules_of(healthy, "alike")


def test_rules_are_learned_from_ranks_that_share(rules: list[Invariant]) -> None:
    found = {each.claim.text("attribute") for each in rules}
    assert {attribute for attribute, _ in FAULTS.values()} <= found


@pytest.mark.parametrize("program", PROGRAMS)
def test_healthy_ranks_with_another_seed_keep_them(
    program: object, runs: dict[Call, ObservedRun], rules: list[Invariant]
) -> None:
    call = next(each for each in CALLS if each[0] is program and each[1:] == (2, ""))
    found = check(runs[call], [Pack("own", tuple(rules))], RULES, min_confidence=0.0)
    assert found.violations == ()
    assert found.kept


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_breaks_its_rule(
    fault: tuple[object, str], runs: dict[Call, ObservedRun], rules: list[Invariant]
) -> None:
    call = next(each for each in CALLS if (each[0], each[2]) == fault)
    found = check(runs[call], [Pack("own", tuple(rules))], RULES, min_confidence=0.0)
    attribute, step = FAULTS[fault]  # type: ignore[index]
    assert {each.invariant.claim["attribute"] for each in found.violations} == {attribute}
    assert found.violations[0].step == step


@pytest.mark.parametrize(
    ("pairs", "kept"),
    [
        ([("0:0.5 1.0", "0:0.5 -1.0")] * 3, [True, False, False]),
        ([("0:0.5 1.0", "0:0.5 1.0")] * 3, [True] * 3),  # replicas
        ([("0:0.5 1.0", "0:0.4999999 1.0000001")] * 3, [True] * 3),  # summed in another order
        ([("0:0.5 1.0", "0:0.4 -1.0")] * 3, [True] * 3),
        ([("0:0.5 1.0", "1:0.5 -1.0")] * 3, [True] * 3),  # of two optimizers
        ([("0:none", "0:0.5 -1.0")] * 3, [True] * 3),
    ],
)
def test_norms_that_are_equal_by_a_limit(pairs: list[histories.Pair], kept: list[bool]) -> None:
    assert histories.norms(pairs) == kept
