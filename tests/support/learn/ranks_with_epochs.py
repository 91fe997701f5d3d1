"""Ranks with epochs of their own lengths, as tables of observed calls and changes."""

from __future__ import annotations

from pytest_trainsafe.judges.learn.events.events import Call, Change, Plain
from pytest_trainsafe.judges.learn.events.table import Table, TableBuilder
from pytest_trainsafe.judges.learn.run import ObservedRun
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
