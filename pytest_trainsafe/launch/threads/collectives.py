"""The definition of each collective: what every rank receives, from what all of them give.

`results` returns for each rank of a group the tensors to write into its outputs.  Terms are added
in the order of ranks; with two terms any order gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import torch
from torch.distributed import ReduceOp

from pytest_trainsafe.errors import TrainsafeError


class DisagreementError(TrainsafeError):
    """The calls of a group's ranks cannot be one collective; the message says why."""


@dataclass(slots=True)
class Given:
    """One rank's part of a collective.

    `inputs` are the tensors that it gives, `outputs` those that it receives into.  `reduce` is the
    ReduceOp, `root` the root's number in the group.  `gives` and `takes` are the rows that it sends
    to and receives from each rank in an all_to_all_single; empty for equal parts.
    """

    op: str
    inputs: Sequence[torch.Tensor] = ()
    outputs: Sequence[torch.Tensor] = ()
    reduce: Any = None
    root: int | None = None
    gives: Sequence[int] = ()
    takes: Sequence[int] = ()
    #: Whether the caller returns before the collective completes.
    is_async: bool = field(default=False, compare=False)

    @property
    def reduction(self) -> str:
        """The name of the ReduceOp, such as SUM; "" if there is none."""
        return "" if self.reduce is None else reduction_name(self.reduce)

    @property
    def signature(self) -> tuple[object, ...]:
        """What must be equal on all ranks."""
        return self.op, self.reduction, self.root

    def __str__(self) -> str:
        text = self.op
        if self.reduce is not None:
            text += f"({self.reduction})"
        if self.root is not None:
            text += f" with root {self.root}"
        sizes = [f"{'x'.join(map(str, t.shape)) or 'one'} {_dtype(t)}" for t in self.inputs[:3]]
        return f"{text} of {', '.join(sizes)}" if sizes else text


Values = list[torch.Tensor]


def results(given: Sequence[Given]) -> list[Values]:
    """For each rank of the group, the values of its outputs.

    A value may be a tensor that was given, or shared by ranks, so it must only be read.  Raises
    DisagreementError if the sizes or dtypes of the ranks' tensors do not fit together.
    """
    op = given[0].op
    values = _OPS[op](given)
    for rank, (each, found) in enumerate(zip(given, values, strict=True)):
        if len(each.outputs) != len(found):
            raise DisagreementError(
                f"rank {rank} of the group has {len(each.outputs)} outputs for {len(found)} parts: "
                f"{_all(given)}"
            )
        for output, value in zip(each.outputs, found, strict=True):
            if output.numel() != value.numel() or output.dtype != value.dtype:
                raise DisagreementError(
                    f"{_tensor(value)} does not fit into {_tensor(output)} of rank {rank} of the "
                    f"group: {_all(given)}"
                )
    return values


def _all(given: Sequence[Given]) -> str:
    return "; ".join(f"rank {rank} calls {each}" for rank, each in enumerate(given[:8]))


def _tensor(tensor: torch.Tensor) -> str:
    return f"a tensor of {'x'.join(map(str, tensor.shape)) or 'one'} {_dtype(tensor)}"


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def reduction_name(op: Any) -> str:
    """The name of a ReduceOp, such as SUM."""
    return str(_kind(op)).rpartition(".")[2]


def _kind(op: Any) -> Any:
    return getattr(op, "op", op)


def reduced(op: Any, terms: Sequence[torch.Tensor]) -> torch.Tensor:
    """The reduction of tensors of equal size, in a new tensor.

    Raises DisagreementError if their sizes or dtypes differ, NotImplementedError for an unknown op.
    """
    first = terms[0]
    for term in terms:
        if term.numel() != first.numel() or term.dtype != first.dtype:
            raise DisagreementError(f"{_tensor(first)} cannot be reduced with {_tensor(term)}")
    kind = _kind(op)
    if kind == ReduceOp.PREMUL_SUM:
        factor = op.factor
        terms, kind = [term * factor for term in terms], ReduceOp.SUM
    if kind == ReduceOp.AVG:
        return reduced(ReduceOp.SUM, terms).div_(len(terms))
    function = _REDUCTIONS.get(kind)
    if function is None:
        raise NotImplementedError(f"the launcher `threads` does not implement {kind}")
    if len(terms) == 1:
        return first.clone()
    rest = [term if term.shape == first.shape else term.reshape(first.shape) for term in terms]
    return reduce(function, rest)


_REDUCTIONS: dict[Any, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    ReduceOp.SUM: torch.add,
    ReduceOp.PRODUCT: torch.mul,
    ReduceOp.MIN: torch.minimum,
    ReduceOp.MAX: torch.maximum,
    ReduceOp.BAND: torch.bitwise_and,
    ReduceOp.BOR: torch.bitwise_or,
    ReduceOp.BXOR: torch.bitwise_xor,
}


def _column(given: Sequence[Given], index: int) -> list[torch.Tensor]:
    """Each rank's input with this index."""
    if any(index >= len(each.inputs) for each in given):
        raise DisagreementError(f"the ranks give different numbers of tensors: {_all(given)}")
    return [each.inputs[index] for each in given]


def _all_reduce(given: Sequence[Given]) -> list[Values]:
    count = max(len(each.inputs) for each in given)
    sums = [reduced(given[0].reduce, _column(given, index)) for index in range(count)]
    return [sums for _ in given]


def _reduce(given: Sequence[Given]) -> list[Values]:
    value = reduced(given[0].reduce, _column(given, 0))
    return [[value] if each.outputs else [] for each in given]


def _broadcast(given: Sequence[Given]) -> list[Values]:
    root = given[_root(given)]
    return [list(root.inputs) for _ in given]


def _all_gather(given: Sequence[Given]) -> list[Values]:
    """Several inputs are as many gathers; the outputs are ordered by input, then by rank."""
    count = max(len(each.inputs) for each in given)
    parts = [part for index in range(count) for part in _column(given, index)]
    return [parts for _ in given]


def _reduce_scatter(given: Sequence[Given]) -> list[Values]:
    """Inputs are ordered as the outputs of `_all_gather`."""
    world, found = len(given), []
    for rank in range(world):
        outputs = len(given[rank].outputs)
        columns = (_column(given, index * world + rank) for index in range(outputs))
        found.append([reduced(given[0].reduce, column) for column in columns])
    return found


def _gather(given: Sequence[Given]) -> list[Values]:
    parts = _column(given, 0)
    return [parts if rank == given[0].root else [] for rank in range(len(given))]


def _scatter(given: Sequence[Given]) -> list[Values]:
    root = given[_root(given)]
    if len(root.inputs) != len(given):
        raise DisagreementError(f"the root scatters {len(root.inputs)} parts: {_all(given)}")
    return [[part] for part in root.inputs]


def _all_to_all(given: Sequence[Given]) -> list[Values]:
    return [_column(given, rank) for rank in range(len(given))]


def _all_to_all_single(given: Sequence[Given]) -> list[Values]:
    world = len(given)
    parts = [_rows(each.inputs[0], each.gives, world) for each in given]
    found = []
    for rank, each in enumerate(given):
        received = [part[rank] for part in parts]
        due = [part.shape[0] for part in _rows(each.outputs[0], each.takes, world)]
        if due != [part.shape[0] for part in received]:
            raise DisagreementError(
                f"rank {rank} of the group receives {due} rows, but is sent "
                f"{[part.shape[0] for part in received]}: {_all(given)}"
            )
        found.append([torch.cat([part.reshape(-1) for part in received])])
    return found


def _rows(tensor: torch.Tensor, sizes: Sequence[int], world: int) -> list[torch.Tensor]:
    """A tensor cut into one part for each rank, by rows."""
    if sizes:
        return list(torch.split(tensor, list(sizes)))
    rows = tensor.shape[0] if tensor.dim() else 0
    if rows % world:
        raise DisagreementError(f"{_tensor(tensor)} has no equal parts for {world} ranks")
    return list(torch.split(tensor, rows // world)) if rows else [tensor[:0]] * world


def _barrier(given: Sequence[Given]) -> list[Values]:
    return [[] for _ in given]


def _root(given: Sequence[Given]) -> int:
    root = given[0].root
    assert root is not None
    return root


_OPS: dict[str, Callable[[Sequence[Given]], list[Values]]] = {
    "all_reduce": _all_reduce,
    "reduce": _reduce,
    "broadcast": _broadcast,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "gather": _gather,
    "scatter": _scatter,
    "all_to_all": _all_to_all,
    "all_to_all_single": _all_to_all_single,
    "barrier": _barrier,
}
