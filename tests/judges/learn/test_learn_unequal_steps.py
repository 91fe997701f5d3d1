"""Ranks are compared in those steps only that are the same on both."""

from __future__ import annotations

import pytest

from pytest_trainsafe.judges.learn.check.offline import check
from pytest_trainsafe.judges.learn.check.verifier import CONFIDENCE
from pytest_trainsafe.judges.learn.events.events import Call, Change, Plain
from pytest_trainsafe.judges.learn.events.table import Table, TableBuilder
from pytest_trainsafe.judges.learn.inference.learn import learn
from pytest_trainsafe.judges.learn.packs.pack import pack_of
from pytest_trainsafe.judges.learn.run import ObservedRun
from tests.support.learn.observed_programs import RULES
from tests.support.learn.training_loops import PARAMETER, tensor

GROUP = "torch.distributed.ProcessGroup"


def table(
    rank: int, lengths: list[int], *, block: str, longest: int, drifts: int, calls: int = 1
) -> Table:
    """A rank that trains for `lengths` steps in each epoch, or use of `Join` (`block`).

    The common epochs have `longest` steps.  From the step `drifts` on, the weights are the rank's
    own.  In its last step, it calls a collective `calls` times.
    """
    builder = TableBuilder(rank)
    step, before = 0, tensor(1, kind=PARAMETER)
    for number, length in enumerate(lengths):
        for at in range(length):
            meta: dict[str, Plain] = {"step": step, "rank": rank, "dp_rank": rank, "phase": ""}
            meta[block] = number + 1
            last = number == len(lengths) - 1 and at == length - 1
            for _ in range(calls if last else 1):
                call = Call("torch.distributed.all_reduce", meta)
                call.values["arg.group"] = tensor(1, kind=GROUP)
                builder.entered(call)
                builder.left(call)
            content = 1 + number * longest + at
            after = tensor(10 * content + (rank if step >= drifts else 0), kind=PARAMETER)
            of = "model.weight", PARAMETER, "data", after, meta
            builder.changed(Change(*of, before=before))
            builder.changed(Change(*of, changed=False))
            before = after
            builder.step_ended(step)
            step += 1
    return builder.table()


def run(
    program: str,
    *lengths: list[int],
    block: str = "epoch",
    drifts: int = 1000,
    calls: tuple[int, int] = (1, 1),
) -> ObservedRun:
    """The ranks of a program."""
    longest = max(max(each) for each in lengths)
    ranks = [
        table(rank, each, block=block, longest=longest, drifts=drifts, calls=calls[rank])
        for rank, each in enumerate(lengths)
    ]
    return ObservedRun(program, ranks, {"torch": "2.13.0"})


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
