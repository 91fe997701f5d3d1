"""Ranks are compared in those steps only that are the same on both."""

from __future__ import annotations

import pytest

from pytest_trainsafe.judges.learn.check.offline import check
from pytest_trainsafe.judges.learn.check.verifier import CONFIDENCE
from pytest_trainsafe.judges.learn.inference.learn import learn
from pytest_trainsafe.judges.learn.packs.pack import pack_of
from pytest_trainsafe.judges.learn.run import ObservedRun
from tests.support.learn.observed_programs import RULES
from tests.support.learn.ranks_with_epochs import run


def found(checked: ObservedRun) -> set[tuple[str, int | None]]:
    """The rules that a run breaks, with the first step."""
    pack = pack_of("ranks", learn([run("one", [4, 4], [4, 4]), run("two", [3, 5], [3, 5])]))
    broken: dict[str, int | None] = {}
    for each in check(checked, [pack], RULES, min_confidence=CONFIDENCE).violations:
        claim = each.invariant.claim
        broken.setdefault(f"{claim.relation} {claim.text('form')}".strip(), each.step)
    return {*broken.items()}


@pytest.mark.parametrize("block", ["epoch", "join"])
def test_ranks_with_unequal_epochs_are_not_compared_after_the_first(block: str) -> None:
    assert found(run("uneven", [4, 4], [3, 3], block=block)) == set()
    assert found(run("uneven", [4, 4, 4], [3, 4, 4], block=block)) == set()


@pytest.mark.parametrize("block", ["epoch", "join"])
def test_what_ranks_have_in_common_is_compared(block: str) -> None:
    assert found(run("uneven", [4, 4], [3, 3], block=block, drifts=2)) == {("consistent stays", 2)}
    assert found(run("even", [4, 4], [4, 4], block=block, drifts=6)) == {("consistent stays", 6)}


def test_a_rank_that_waits_for_the_other_in_the_last_step_is_compared() -> None:
    assert found(run("waits", [4, 4], [4, 3])) == {("agreement calls", 7)}
    assert found(run("waits", [4, 4], [4, 3], block="join")) == set()


def test_calls_are_counted_in_common_steps() -> None:
    assert found(run("more", [4, 4], [4, 4], calls=(1, 2))) == {("agreement calls", 7)}
