"""An invariant is general if enough programs support it, and it is no author's choice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pytest_trainsafe.judges.learn.relation import Relation
from pytest_trainsafe.judges.learn.use.general import PRIOR, PROGRAMS, general
from tests.support.learn.training_loops import HEALTHY, run_of

RUNS = [run_of(plan) for plan in HEALTHY.values()]


def test_general_invariants_have_enough_programs_and_a_sufficient_prior(
    relations: Mapping[str, Relation],
) -> None:
    found = general(RUNS, relations)

    assert len(found.invariants) >= 5
    for each in found.invariants:
        assert each.programs >= PROGRAMS
        assert relations[each.claim.relation].prior(each.claim) >= PRIOR
    assert found.left_out["authors choose it"] > 0


def test_invariants_of_two_programs_are_not_general(relations: Mapping[str, Relation]) -> None:
    found = general(RUNS[:2], relations)

    assert found.invariants == ()
    assert found.left_out["too few programs"] > 0


def test_an_order_is_general_only_if_some_but_not_all_programs_mark_their_steps(
    relations: Mapping[str, Relation],
) -> None:
    more = [run_of(replace(HEALTHY["mlp"], program=f"mlp{number}")) for number in range(8)]
    names = {run.program for run in (*RUNS, *more)}

    def orders(marked: set[str]) -> int:
        found = general([*RUNS, *more], relations, None, marked)
        return sum(each.claim["form"] == "order" for each in found.invariants)

    assert orders(set()) == orders(names) == 0
    assert orders({"mlp", "mlp1"}) > 0


def test_only_programs_in_the_given_set_support_an_invariant(
    relations: Mapping[str, Relation],
) -> None:
    assert general(RUNS, relations, {"mlp", "cnn"}).invariants == ()
