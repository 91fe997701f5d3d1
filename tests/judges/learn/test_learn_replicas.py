"""Replicas that differ from the start, and ranks that get the same batches, are reported."""

from __future__ import annotations

import pytest

from pytest_trainsafe.judges.learn.check.offline import check
from pytest_trainsafe.judges.learn.check.verifier import CONFIDENCE
from pytest_trainsafe.judges.learn.events.events import Call, Change, Plain, Value
from pytest_trainsafe.judges.learn.events.table import Table, TableBuilder
from pytest_trainsafe.judges.learn.inference.learn import learn
from pytest_trainsafe.judges.learn.packs.pack import pack_of
from pytest_trainsafe.judges.learn.run import ObservedRun
from tests.support.learn.observed_programs import RULES
from tests.support.learn.training_loops import PARAMETER, tensor

STEPS = 3


def table(rank: int, axis: str, *, start: int, batch: int) -> Table:
    """A rank with one replica and one shard, whose loader gives it batches.

    `start` is added to the replica's content, and `batch` to that of the batches.
    """
    builder = TableBuilder(rank)
    for step in range(STEPS):
        meta: dict[str, Plain] = {"step": step, "rank": rank, f"{axis}_rank": rank, "phase": ""}
        call = Call("torch.utils.data.DataLoader.__next__", meta)
        builder.entered(call)
        call.values["result.0"] = tensor(1000 + 10 * step + batch)
        builder.left(call)
        for name, data, grad in (
            ("model.replica", 10 * step + start + 1, 10 * step + 5),
            ("model.shard", 10 * step + rank + 1, 10 * step + rank + 5),
        ):
            for attribute, digest in (("data", data), ("grad", grad)):
                value = tensor(digest + 7919 * len(name), kind=PARAMETER)
                after = value if attribute == "data" else Value("torch.Tensor", None, value.tensor)
                change = Change(name, PARAMETER, attribute, after, meta, changed=False)
                builder.changed(change)
        builder.step_ended(step)
    return builder.table()


def run(program: str, *, apart: bool = False, same: bool = False, axis: str = "dp") -> ObservedRun:
    """Two ranks, whose replicas are apart from the start, or whose batches are the same."""
    ranks = [
        table(rank, axis, start=rank * 3 * apart, batch=0 if same else rank) for rank in range(2)
    ]
    return ObservedRun(program, ranks, {"torch": "2.13.0"})


@pytest.mark.parametrize(
    ("apart", "same", "rule"),
    [
        (False, False, ""),
        (True, False, "whose gradient is equal on two ranks is equal on them"),
        (False, True, "the content of result.0 of torch.utils.data.DataLoader.__next__ differs"),
    ],
)
def test_what_two_programs_of_ranks_say_of_a_third(apart: bool, same: bool, rule: str) -> None:
    pack = pack_of("ranks", learn([run("one"), run("two")]))
    found = check(run("third", apart=apart, same=same), [pack], RULES, min_confidence=CONFIDENCE)
    said = {
        RULES[each.invariant.claim.relation].explain(each.invariant.claim).sentence
        for each in found.violations
    }
    assert len(said) == bool(rule), said
    assert all(rule in each for each in said)
    assert not rule or found.violations[0].step == 0


def test_ranks_that_split_tensors_may_read_the_same_batches() -> None:
    runs = [run("one"), run("two"), run("three", same=True, axis="tp")]
    pack = pack_of("ranks", learn(runs))
    assert check(run("fourth", same=True, axis="tp"), [pack], RULES).violations == ()
    assert check(run("fifth", same=True), [pack], RULES).violations
