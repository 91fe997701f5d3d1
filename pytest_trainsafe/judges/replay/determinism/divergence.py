"""Finds where two Runs of one program first differ bit for bit, in dataflow order."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Literal

import torch

from pytest_trainsafe.align.dataflow import in_dataflow
from pytest_trainsafe.core.finding import StepSubject
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.errors import TraceError
from pytest_trainsafe.trace.reader import RankTrace, Trace
from pytest_trainsafe.trace.schema import TensorEvent

#: How two Runs differ: in a tensor's "values", or in its "shape" or dtype. The second Run lacks
#: the tensor ("missing"), or only the second Run has it ("added"). If all tensors are equal: in
#: the model's "inputs", in whether the optimizer stepped ("steps"), or in the tensors' "order".
#: The order of an optimizer's states does not count.
How = Literal["values", "shape", "missing", "added", "order", "inputs", "steps"]


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first difference between two Runs.

    `where` is the tensor that differs, or None if the difference concerns a whole `step`.
    `order` is the tensor's position in dataflow order. `total` is the number of tensors that either
    Run recorded, and `differing` the number of those that differ, both over all ranks. `greatest`
    is the largest absolute difference between this tensor's elements, or None if it is unknown.
    """

    how: How
    rank: int
    step: int
    where: TensorId | None = None
    order: int = 0
    differing: int = 0
    total: int = 0
    greatest: float | None = None

    @property
    def subject(self) -> StepSubject | None:
        """The step that the difference is about; None if it is about a tensor."""
        return None if self.where is not None else StepSubject(self.step)


def first_divergence(first: Trace, second: Trace) -> Divergence | None:
    """The first difference between two Runs with equal numbers of ranks; None if there is none."""
    assert len(first.ranks) == len(second.ranks)
    pairs = list(zip(first.ranks, second.ranks, strict=True))
    total = sum(len(_ids(one, other)) for one, other in pairs)
    differing = sum(_count(one, other) for one, other in pairs)
    if differing:
        how, rank, order, where = _first_tensor(first, second)
        return Divergence(
            how,
            rank,
            where.step,
            where,
            order,
            differing,
            total,
            _greatest(first, second, rank, where) if how == "values" else None,
        )
    for one, other in pairs:
        if (step := _step_of_unlike(one, other)) is not None:
            return Divergence(step[0], one.rank, step[1])
        for a, b in zip(_ordered(one), _ordered(other), strict=True):
            if a != b:
                order = one.tensors[a].seq
                return Divergence("order", one.rank, a.step, a, order, 0, total)
    return None


def _same(one: TensorEvent | None, other: TensorEvent | None) -> bool:
    if one is None or other is None:
        return one is other
    return (one.hash, one.dtype, one.shape) == (other.hash, other.dtype, other.shape)


def _ordered(rank: RankTrace) -> list[TensorId]:
    """The tensors of a rank in the order in which they were recorded.

    An optimizer's states are left out.  They are entries of dicts, which a checkpoint may fill in
    another order than a step does, and nothing is computed in that order.
    """
    return [id for id in rank.tensors if id.kind != "optimizer_state"]


def _count(one: RankTrace, other: RankTrace) -> int:
    ids = _ids(one, other)
    return sum(not _same(one.tensors.get(id), other.tensors.get(id)) for id in ids)


def _ids(one: RankTrace, other: RankTrace) -> set[TensorId]:
    """The tensors that a rank recorded in either Run."""
    return one.tensors.keys() | other.tensors.keys()


def _first_tensor(first: Trace, second: Trace) -> tuple[How, int, int, TensorId]:
    """How the first differing tensor differs, its rank, its position in dataflow, and its id."""
    found: list[tuple[int, int, How, int, TensorId]] = []
    for trace, absent in ((first, "missing"), (second, "added")):
        for order, id in enumerate(_every_id(trace)):
            events = [(a.tensors.get(id), b.tensors.get(id)) for a, b in _pairs(first, second)]
            rank = next((n for n, (a, b) in enumerate(events) if not _same(a, b)), None)
            if rank is None:
                continue
            a, b = events[rank]
            how: How
            if a is None or b is None:
                how = "missing" if absent == "missing" else "added"
            else:
                how = "values" if (a.dtype, a.shape) == (b.dtype, b.shape) else "shape"
            found.append((id.step, order, how, rank, id))
            break
    _, order, how, rank, id = min(found, key=lambda each: each[:2])
    return how, rank, order, id


def _every_id(trace: Trace) -> list[TensorId]:
    """Every tensor in dataflow order, and then those that `in_dataflow` leaves out."""
    ids = dict.fromkeys(in_dataflow(trace))
    rest = (id for rank in trace.ranks for id in rank.tensors)
    return list(dict.fromkeys(itertools.chain(ids, rest)))


def _pairs(first: Trace, second: Trace) -> list[tuple[RankTrace, RankTrace]]:
    return list(zip(first.ranks, second.ranks, strict=True))


def _step_of_unlike(one: RankTrace, other: RankTrace) -> tuple[How, int] | None:
    """The first training step in which a rank's inputs differ between two Runs.

    If no inputs differ, the first training step in which the optimizer stepped in only one of the
    Runs, or that only one of them has.  `one` and `other` are the rank in the two Runs.  Returns
    "inputs" or "steps" and the number of the training step; None if there is no difference.
    """
    for a, b in itertools.zip_longest(one.inputs, other.inputs):
        if a != b:
            return "inputs", (a or b).step
    for a, b in itertools.zip_longest(one.steps, other.steps):
        if a is None or b is None or a.optimizer_stepped != b.optimizer_stepped:
            return "steps", (a or b).step
    return None


def _greatest(first: Trace, second: Trace, rank: int, where: TensorId) -> float | None:
    """The largest absolute difference between a tensor's elements in two Runs.

    None if a Run did not keep its values, or if the tensor is empty or boolean.
    """
    try:
        one = first.load(rank, first.ranks[rank].tensors[where])
        other = second.load(rank, second.ranks[rank].tensors[where])
    except TraceError:  # a sketch has no elements
        return None
    if not one.numel() or one.dtype is torch.bool:
        return None
    wide = torch.complex128 if one.is_complex() else torch.float64
    return float((one.to(wide) - other.to(wide)).abs().max())
