"""Ranks whose batches, buffers, factors or first weights are wrong are reported."""

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
from tests.support.learn.observed_programs import RULES, said
from tests.support.learn.two_ranks import (
    Call,
    divided,
    owners,
    replicas,
    rules_of,
    runs_of,
    walkers,
)

_BATCHES = "the ranks of dp train a model that is replicated or sharded with different batches"
_FACTOR = "the gradients of a step are scaled by one factor on the ranks"
_SUMS = "what the ranks of dp sum in a step differs between them"
_BUFFERS = "the buffers of a model that begin equal on the ranks of dp stay equal"
_WEIGHTS = (
    "where DistributedDataParallel wraps a model, each matrix of torch.nn.Parameter that begins "
    "with the same random numbers on two ranks is equal on them after a step"
)
_REPLICAS = "each torch.nn.Parameter whose gradient is equal on two ranks is equal on them"
#: What breaks if a program has a fault.
FAULTS = {
    (replicas, "same data"): {_BATCHES},
    (replicas, "own norm"): {_FACTOR, _WEIGHTS},
    (replicas, "unwrapped loss"): {_WEIGHTS},
    (walkers, "own statistics"): {_BUFFERS},
    (walkers, "same data"): {_SUMS},
    (walkers, "own weights"): {_REPLICAS},
    (owners, "own norm"): {_FACTOR},
}
PROGRAMS = (replicas, walkers, owners)
CALLS: list[Call] = [
    *((program, seed, "") for program in PROGRAMS for seed in (0, 1, 2)),
    *((program, 2, fault) for program, fault in FAULTS),
    *((divided, 0, fault) for fault in ("plain", "by ranks", "by hand")),
]


@pytest.fixture(scope="module", name="runs")
def _runs(run_launcher: Launcher) -> dict[Call, ObservedRun]:
    return dict(zip(CALLS, runs_of(run_launcher, CALLS), strict=True))


@pytest.fixture(scope="module", name="rules")
def _rules(runs: dict[Call, ObservedRun]) -> list[Invariant]:
    healthy = [runs[program, seed, ""] for program in PROGRAMS for seed in (0, 1)]
    about = ("batch", "scaling", "buffers", "summed")
    return [
        each
        for each in rules_of(healthy, "alike", "consistent")
        if (each.claim.relation == "alike" and each.claim["attribute"] in about)
        or each.claim["form"] in ("began", "reduced")
    ]


def test_rules_are_learned_from_healthy_ranks(rules: list[Invariant]) -> None:
    sentences = {RULES[each.claim.relation].explain(each.claim).sentence for each in rules}
    assert sentences == {sentence for each in FAULTS.values() for sentence in each}


@pytest.mark.parametrize("program", PROGRAMS)
def test_healthy_ranks_with_another_seed_keep_them(
    program: object, runs: dict[Call, ObservedRun], rules: list[Invariant]
) -> None:
    call = next(each for each in CALLS if each[0] is program and each[1:] == (2, ""))
    found = check(runs[call], [Pack("own", tuple(rules))], RULES, min_confidence=0.0)
    assert found.violations == ()
    assert found.kept


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_breaks_its_rule_at_once(
    fault: tuple[object, str], runs: dict[Call, ObservedRun], rules: list[Invariant]
) -> None:
    call = next(each for each in CALLS if (each[0], each[2]) == fault)
    found = check(runs[call], [Pack("own", tuple(rules))], RULES, min_confidence=0.0)
    assert set(said(found)) == FAULTS[fault]  # type: ignore[index]
    # What a step does to buffers shows when the model begins the next one.
    assert found.violations[0].step == int(_BUFFERS in FAULTS[fault])  # type: ignore[index]


@pytest.mark.parametrize(
    ("fault", "slips"),
    [("plain", set()), ("by ranks", {"averaged-and-divided"}), ("by hand", set())],
)
def test_a_loss_that_is_divided_by_the_ranks_and_averaged(
    fault: str, slips: set[str], runs: dict[Call, ObservedRun]
) -> None:
    tables = runs[divided, 0, fault].tables
    found = {slip_in(text) for table in tables for text in texts_of(Frame(table), SLIP)[1]}
    assert found - {""} == slips


def test_ranks_that_share_the_work_of_an_optimizer_have_no_slip(
    runs: dict[Call, ObservedRun],
) -> None:
    tables = runs[owners, 0, ""].tables
    assert {text for table in tables for text in texts_of(Frame(table), SLIP)[1]} <= {""}
