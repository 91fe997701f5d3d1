"""Groups start in order of arrival, each within the budget of its own test run."""

from __future__ import annotations

import random

import pytest

from pytest_trainsafe.launch.resources.turns import Claim, Turn, turn


def group(ranks: int, budget: int, run: str = "") -> Claim:
    return Claim(ranks, "cpu", budget=budget, run=run)


def test_a_small_budget_does_not_count_ranks_of_runs_that_allow_themselves_more() -> None:
    assert turn(group(2, 2), [group(6, 8)], []).starts
    assert not turn(group(2, 2), [group(6, 8), group(1, 2)], []).starts


def test_a_large_budget_counts_the_ranks_of_all_runs() -> None:
    assert turn(group(6, 8), [group(2, 2)], []).starts
    assert not turn(group(7, 8), [group(2, 2)], []).starts


def test_all_ranks_together_do_not_exceed_the_largest_budget() -> None:
    assert turn(group(1, 2), [group(7, 8)], []).starts
    assert not turn(group(2, 2), [group(7, 8)], []).starts


def test_a_group_whose_own_budget_is_used_up_does_not_hold_up_a_run_with_more() -> None:
    held, before = [group(2, 2)], [group(2, 2)]

    assert turn(group(4, 8), held, before) == Turn(starts=True)
    assert turn(group(1, 2), held, before) == Turn(starts=False, next=False)


def test_a_group_that_waits_for_ranks_of_all_runs_is_not_overtaken() -> None:
    held, before = [group(7, 8)], [group(2, 2)]

    assert turn(group(1, 8), held, before) == Turn(starts=False, next=False)
    assert turn(group(1, 2), held, before) == Turn(starts=False, next=False)


def test_a_group_leaves_room_for_those_before_it_that_may_start() -> None:
    assert turn(group(1, 2), [], [group(1, 2)]).starts
    assert turn(group(1, 2), [], [group(2, 2)]) == Turn(starts=False, next=False)


def test_a_run_with_fewer_ranks_at_work_is_next() -> None:
    held = [group(1, 2, "large")]
    one, other = group(1, 2, "large"), group(1, 2, "small")

    assert turn(other, held, [one, group(1, 2, "large")]).starts
    assert turn(one, held, [], [other]) == Turn(starts=False, next=False)


def test_runs_with_as_many_ranks_at_work_start_in_order_of_arrival() -> None:
    held = [group(1, 3, "one"), group(1, 3, "other")]

    assert turn(group(1, 3, "one"), held, [], [group(1, 3, "other")]).starts
    assert not turn(group(1, 3, "other"), held, [group(1, 3, "one")]).starts


@pytest.mark.parametrize("budget", [2, 8])
def test_a_group_larger_than_its_budget_runs_alone(budget: int) -> None:
    assert turn(group(9, budget), [], []).starts
    assert turn(group(9, budget), [group(1, budget)], []) == Turn(starts=False)
    assert not turn(group(1, budget), [group(9, budget)], []).starts


def test_claims_without_a_budget_count_in_every_budget() -> None:
    old = Claim(2, "cpu")

    assert not turn(group(1, 2), [old], []).starts
    assert turn(group(1, 4), [old], []).starts


@pytest.mark.parametrize("seed", range(20))
def test_all_groups_start_at_some_time_and_never_exceed_a_budget(seed: int) -> None:
    """Budgets, sizes, arrivals and ends are random; sums are checked after each start."""
    draw = random.Random(seed)
    budgets = draw.sample([2, 3, 4, 8], 2)
    waiting = [
        (n, group(draw.randint(1, 4), draw.choice(budgets), draw.choice("abc"))) for n in range(40)
    ]
    held: list[tuple[int, Claim]] = []
    while waiting or held:
        for position, (number, claim) in enumerate(waiting):
            running, queue = [each for _, each in held], [each for _, each in waiting]
            if turn(claim, running, queue[:position], queue[position + 1 :]).starts:
                held.append((number, claim))
                waiting.remove((number, claim))
                break
        else:
            # Nothing starts.  If nothing ran either, the first in the queue would wait for ever.
            assert held, waiting
            held.remove(draw.choice(held))
        for limit in budgets:
            inside = [claim.ranks for _, claim in held if claim.budget <= limit]
            assert len(inside) <= 1 or sum(inside) <= limit
