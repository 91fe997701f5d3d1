"""A line that changes a replica outside of the optimizer's step, on some ranks alone, is named."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest
import torch

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.trace.facts import Changed, Site, Unheld
from tests.support.compare.clipped_traces import rung
from tests.support.compare.traces import Record, only
from tests.support.localize.blamed_traces import blamed, located_faults, noting, text_of, with_facts

BIAS = "fc1.bias"
STEP = Site("step", "/me/fit.py:40")
ADD = Changed(0, "/me/fit.py:38", "add_", parameters=(BIAS,))
LATE = Changed(0, "/me/nudge.py:3", "mul_", "/me/fit.py:42", True, (1.001,), (BIAS,))


def drifts(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
    return part + 1.0 if at["dp"] else part


def everywhere(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
    return part + 1.0


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> RungTraces:
    """A rung in which the replica of BIAS on dp rank 1 is wrong after a step."""
    folder = tmp_path_factory.mktemp("drifted")
    return rung(folder, Point.of(dp=2), only("param", BIAS, drifts, step=0), limit=0)


def seeing(given: RungTraces, *lines: tuple[Changed, ...]) -> RungTraces:
    """The rung as if each rank of the candidate had recorded its own of `lines`."""
    ranks = [
        dataclasses.replace(rank, facts=with_facts(rank, STEP, *own))
        for rank, own in zip(given.candidate.ranks, lines, strict=True)
    ]
    return dataclasses.replace(given, candidate=given.candidate.with_ranks(ranks))


def test_a_line_that_changes_one_rank_s_replica_is_at_fault_and_not_the_optimizer(
    apart: RungTraces,
) -> None:
    given = seeing(apart, (), (ADD,))
    assert [(fault.phase, fault.target) for fault in blamed(given)] == [("optimizer", BIAS)]
    found = located_faults(given)
    assert (
        "the program's own code changes a replica of fc1.bias before the optimizer's step, on "
        "rank 1 alone"
    ) in text_of(found)
    assert "the optimizer's step of fc1.bias is wrong" not in text_of(found)
    assert (found.source, found.what) == (
        "/me/fit.py:38",
        "changes parameters by add_ on rank 1 alone",
    )


def test_a_change_after_the_step_has_the_line_that_leads_to_it(apart: RungTraces) -> None:
    found = located_faults(seeing(apart, (), (LATE,)))
    assert "a replica of fc1.bias after the optimizer's step, on rank 1 alone" in text_of(found)
    assert found.source == "/me/nudge.py:3"
    assert found.what.startswith("changes parameters by mul_ on rank 1 alone; called at ")


@pytest.mark.parametrize(
    "lines",
    [
        ((ADD,), (ADD,)),
        ((), ()),
        ((), (msgspec.structs.replace(ADD, step=1),)),
        ((), (msgspec.structs.replace(ADD, parameters=("fc2.weight",)),)),
    ],
)
def test_lines_on_all_ranks_of_other_steps_or_of_other_parameters_are_not_named(
    apart: RungTraces, lines: tuple[tuple[Changed, ...], ...]
) -> None:
    found = located_faults(seeing(apart, *lines))
    assert "the optimizer's step of fc1.bias is wrong" in text_of(found)
    assert found.source == "/me/fit.py:40"


def in_reference(given: RungTraces, *facts: msgspec.Struct) -> RungTraces:
    [alone] = given.reference.ranks
    known = dataclasses.replace(alone, facts=with_facts(alone, *facts))
    return dataclasses.replace(given, reference=given.reference.with_ranks([known]))


def test_a_line_of_the_reference_that_some_ranks_leave_out_is_at_fault(apart: RungTraces) -> None:
    """As if one rank alone took over an average of the weights."""
    found = located_faults(in_reference(seeing(apart, (), (ADD,)), ADD))
    assert (
        "changes a replica of fc1.bias before the optimizer's step, on rank 1 alone: the reference "
        "runs this line too, and the other ranks leave it out"
    ) in text_of(found)
    assert found.source == ADD.at


def test_a_line_of_the_reference_is_not_named_if_the_other_ranks_change_it_by_another(
    apart: RungTraces,
) -> None:
    """As one rank may change it and send it to the others."""
    sent = Changed(0, "/me/fit.py:39", "broadcast_", parameters=(BIAS,))
    given = in_reference(seeing(apart, (sent,), (ADD,)), ADD, sent)
    assert located_faults(given).source == STEP.at


def test_replicas_that_are_alike_wrong_are_blamed_on_the_optimizer(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("alike")
    alike = rung(folder, Point.of(dp=2), only("param", BIAS, everywhere, step=0), limit=0)
    assert located_faults(seeing(alike, (), (ADD,))).source == "/me/fit.py:40"


@pytest.fixture(scope="module")
def alike(tmp_path_factory: pytest.TempPathFactory) -> RungTraces:
    """A rung in which BIAS is wrong after a step on all ranks alike, and all change it."""
    folder = tmp_path_factory.mktemp("all")
    wrong = rung(folder, Point.of(dp=2), only("param", BIAS, everywhere, step=0), limit=0)
    return seeing(wrong, (LATE,), (LATE,))


def test_a_line_that_the_reference_does_not_run_is_at_fault_on_all_ranks_too(
    alike: RungTraces,
) -> None:
    found = located_faults(noting(alike, Unheld()))
    assert (
        "the program's own code changes fc1.bias after the optimizer's step, which it does not in "
        "the reference"
    ) in text_of(found)
    assert found.source == LATE.at
    assert found.what.startswith("changes parameters by mul_ and does not in the reference")


@pytest.mark.parametrize(
    ("facts", "theirs"),
    [
        ((Unheld(),), (LATE,)),  # the reference runs it too
        ((), ()),  # what the optimizer holds is not known, such as a flat buffer
        # Ranks may average what they have stepped.
        ((Unheld(), Changed(0, "/me/fit.py:41", "allreduce_", parameters=(BIAS,))), ()),
    ],
)
def test_a_line_that_may_be_right_leaves_the_optimizer_at_fault(
    alike: RungTraces, facts: tuple[msgspec.Struct, ...], theirs: tuple[Changed, ...]
) -> None:
    found = located_faults(in_reference(noting(alike, *facts), *theirs))
    assert "the optimizer's step of fc1.bias is wrong" in text_of(found)
    assert found.source == STEP.at


def test_a_line_that_gets_another_number_in_the_reference_is_at_fault(alike: RungTraces) -> None:
    """As a clamp of a parameter after the step."""
    other = msgspec.structs.replace(LATE, numbers=(1.0,))
    found = located_faults(in_reference(noting(alike, Unheld()), other))
    assert (
        "the program's own code changes fc1.bias after the optimizer's step; mul_ at "
        "/me/nudge.py:3 gets 1.001, and in the reference 1"
    ) in text_of(found)
    assert found.source == LATE.at
    assert found.what.startswith("changes parameters by mul_ with another number than in the ref")
