"""Recognises ranks of dp that saw the same data in a whole step, unlike the reference.

They are ranks that each train every micro-batch, or those of a program that marks no micro-batch
(`level="step"`).  Called by `leading`.
"""

from __future__ import annotations

import math

from pytest_trainsafe.core.finding import Finding, Pattern
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judges.compare.comparison import Comparison
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.trace.facts import CollectiveEvent
from pytest_trainsafe.trace.reader import RankTrace, Trace

#: The kinds of a whole step that wrong data make wrong at once, besides the loss.
_GRADIENTS = frozenset({"unclipped_grad", "main_grad", "grad_norm"})

#: The patterns of gradients that are counted too often.
_FACTORS = frozenset({"scaled", "clip factor"})

#: Collectives that carry no values.
_EMPTY = frozenset({"barrier", "monitored_barrier"})


def same_data_in_step(rung: RungTraces, comparison: Comparison, where: TensorId) -> Pattern | None:
    """The pattern of `where`, the first wrong tensor, of a step in which ranks saw the same data.

    Recorded inputs show it if they are all inputs of the reference too, which has others as well.
    Without recorded inputs, losses that are equal bit for bit show that the ranks saw the same
    data, or that their loss does not depend on these.
    """
    if where.microbatch is not None or any(s.microbatches for s in rung.reference.ranks[0].steps):
        return None
    late = where.kind in _GRADIENTS and not comparison.compared["loss"]
    if where.kind != "loss" and not late:
        return None
    members = {*rung.candidate.sizes.mesh.members("dp")}
    ranks = rung.candidate.ranks
    for place, here in enumerate(ranks):
        for there in ranks[place + 1 :]:
            apart = {a for a, at in here.coordinates.items() if there.coordinates[a] != at}
            if not apart <= members:
                continue
            if any(rank.inputs for rank in ranks):
                proven = _same_inputs(rung, here, there, where.step)
            else:
                proven = _same_losses(here, there, where)
            if proven:
                over = " and ".join(axis for axis in here.coordinates if axis in apart)
                return _pattern(here, there, over, by_inputs=any(rank.inputs for rank in ranks))
    return None


def same_micro_batches(rung: RungTraces, lead: Finding) -> Pattern | None:
    """The pattern of ranks of dp that each train every micro-batch of a step, on equal data.

    For `lead`, the first wrong tensor, if it is one of the whole step that is wrong by a factor:
    each micro-batch is right, and a sum over dp counts it once for each rank.
    """
    where, pattern = lead.where, lead.pattern
    if where is None or where.microbatch is not None or where.kind not in _GRADIENTS:
        return None
    if pattern is None or pattern.name not in _FACTORS:
        return None
    due = _numbered(rung.reference.ranks[0], where.step)
    members = {*rung.candidate.sizes.mesh.members("dp")}
    here, *others = rung.candidate.ranks
    mine = _numbered(here, where.step)
    if not mine or mine != due or len({*mine.values()}) < len(mine):
        return None
    for there in others:
        apart = {a for a, at in here.coordinates.items() if there.coordinates[a] != at}
        if apart and apart <= members and _numbered(there, where.step) == mine:
            over = " and ".join(axis for axis in here.coordinates if axis in apart)
            ranks = f"ranks {here.rank} and {there.rank} of {over}"
            text = f"{ranks} saw the same data: each trains all {len(mine)} micro-batches of a step"
            cause = (
                f"each rank of {over} must train its own share of the micro-batches, as "
                "ctx.microbatches(n) divides them; a sum over the ranks counts each of them again"
            )
            return Pattern("same data", text, over, cause, short=f"{ranks} see the same data")
    return None


def _numbered(rank: RankTrace, step: int) -> dict[int, tuple[str, ...]]:
    found: dict[int, tuple[str, ...]] = {}
    for each in rank.inputs:
        if each.step == step:
            found[each.microbatch] = (*found.get(each.microbatch, ()), *each.hashes)
    return {number: hashes for number, hashes in found.items() if hashes}


def _pattern(here: RankTrace, there: RankTrace, over: str, by_inputs: bool) -> Pattern:
    ranks = f"ranks {here.rank} and {there.rank} of {over}"
    if by_inputs:
        text = f"{ranks} saw the same data, and the reference saw others as well"
    else:
        text = (
            f"the losses of {ranks} are equal bit for bit, and no collective was seen that "
            "makes them equal: the ranks saw the same data, or the loss does not depend on the data"
        )
    cause = (
        f"check how the program divides its data over {over}: the sampler, or the numbers and "
        "seeds from which a rank makes its data"
    )
    return Pattern("same data", text, over, cause, short=f"{ranks} see the same data")


def _same_inputs(rung: RungTraces, here: RankTrace, there: RankTrace, step: int) -> bool:
    """Whether two ranks received equal inputs, and the reference these and others."""
    mine = _inputs(here, step)
    due = _seen(rung.reference, step)
    return (
        bool(mine)
        and mine == _inputs(there, step)
        and due.issuperset(mine)
        and bool(due - _seen(rung.candidate, step))
    )


def _seen(trace: Trace, step: int) -> set[tuple[str, ...]]:
    return {hashes for rank in trace.ranks for hashes in _inputs(rank, step)}


def _inputs(rank: RankTrace, step: int) -> list[tuple[str, ...]]:
    return [tuple(each.hashes) for each in rank.inputs if each.step == step and each.hashes]


def _same_losses(here: RankTrace, there: RankTrace, where: TensorId) -> bool:
    """Whether two ranks reported equal losses, which no collective between them can have made so.

    A collective on a tensor of a parameter's shape, of more than one element, carries no loss.
    """
    mine, other = here.tensors.get(where), there.tensors.get(where)
    if where.kind != "loss" or mine is None or other is None:
        return False
    if mine.hash != other.hash or {mine.layout_source, other.layout_source} != {"default"}:
        return False
    shapes = {tuple(e.shape) for id, e in here.tensors.items() if id.kind == "param"}
    return not any(
        event.step == where.step
        and there.rank in event.ranks
        and event.op not in _EMPTY
        and (event.shape is None or math.prod(event.shape) == 1 or event.shape not in shapes)
        for event in here.events_of(CollectiveEvent)
    )
