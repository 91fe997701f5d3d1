"""Collectives: reductions add in the field, all others move packed numbers as they are.

A backend would add the doubles.  So a reduction gathers the numbers of all ranks and adds them on
each rank; a maximum or minimum is a decision, like that of two tensors on one rank.  A program sees
no result before it waits for it (`compat/distributed/held_work.py`), of integers neither.  Tested
with real ranks in tests/arithmetic/test_arithmetic_collectives.py and test_arithmetic_waits.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from pytest_trainsafe.arithmetic.errors import ExactError, changed_in_flight
from pytest_trainsafe.arithmetic.numbers import Numbers
from pytest_trainsafe.arithmetic.packing import in_torch
from pytest_trainsafe.arithmetic.semantics.elementwise.decided import maximum, minimum
from pytest_trainsafe.arithmetic.semantics.examples import none
from pytest_trainsafe.arithmetic.table import moves, semantics_of
from pytest_trainsafe.compat.distributed.held_work import (
    Begun,
    Held,
    HeldWork,
    boxed,
    unboxed,
    wait_by_tensor,
)
from pytest_trainsafe.compat.distributed.process_groups import gathered, group_named
from pytest_trainsafe.compat.operators import schema_of

moves(
    *("c10d.barrier", "_c10d_functional.wait_tensor", "_c10d_functional._wrap_tensor_autograd"),
    *(f"fsdp.{name}" for name in ("all_gather_copy_in", "chunk_cat", "split_with_sizes_copy")),
    examples=none,
)

#: torch.distributed.ReduceOp, by number.
_KINDS = {0: "sum", 1: "avg", 3: "min", 4: "max"}
Group = Any  # A torch.distributed.ProcessGroup.
#: A tensor, a list of tensors, or a list of lists.
Tensors = Any


def begin(n: Numbers, x: torch.Tensor, group: Group, kind: str) -> Begun:
    """Begins the reduction of `x` over all ranks of a group; each rank gets the result."""
    if kind not in _KINDS.values():
        raise ExactError(
            f"a reduction of exact numbers over ranks by {kind!r} has no semantics; sum, avg, min "
            "and max have"
        )
    given = x.clone(memory_format=torch.contiguous_format)
    parts = [torch.empty_like(given) for _ in range(group.size())]
    work = gathered(group, parts, given)  # which nobody sees before `finish`

    def finish() -> list[torch.Tensor]:
        work.wait()
        if kind in ("sum", "avg"):
            total = n.total(parts)
            return [in_torch(n.divide(total, len(parts)) if kind == "avg" else total)]
        choose = maximum if kind == "max" else minimum
        return [in_torch(functools.reduce(functools.partial(choose, n), parts))]

    return Begun([work], finish)


def _part(whole: torch.Tensor, group: Group) -> torch.Tensor:
    """This rank's part of a tensor."""
    part: torch.Tensor = whole.chunk(group.size())[group.rank()]
    return part


def _together(begun: Sequence[Begun]) -> Begun:
    works = [work for each in begun for work in each.works]
    return Begun(works, lambda: [result for each in begun for result in each.finish()])


def _flat(tensors: Tensors) -> list[torch.Tensor]:
    return list(_each(tensors))


def _each(tensors: Tensors) -> Iterator[torch.Tensor]:
    if isinstance(tensors, torch.Tensor):
        yield tensors
        return
    for each in tensors:
        yield from _each(each)


def _copied(tensors: Tensors) -> Tensors:
    if isinstance(tensors, torch.Tensor):
        return tensors.clone()
    return [_copied(each) for each in tensors]


# Operators of process groups: their tensors are written and read by position.


def _c10d(name: str, written: int | None, read: int | None, reduces: bool = False) -> None:
    """States an operator of process groups; one that `reduces` does so with numbers only."""
    operator = getattr(torch.ops.c10d, name)

    @semantics_of(f"c10d.{name}", examples=none, between_ranks=True)
    def rule(n: Numbers, *args: Any, **keywords: Any) -> Any:
        outputs, inputs = ([] if at is None else _flat(args[at]) for at in (written, read))
        if reduces and any(each.is_floating_point() for each in inputs):
            begun = _reduced(n, name, *args)
        else:
            begun = _moved(operator, written, read, args, keywords)
        held = Held(begun.finish, outputs, inputs, changed_in_flight(f"c10d.{name}"))
        work = boxed(HeldWork(held, begun.works))
        if len(schema_of(operator.default).returns) == 1:
            return work
        assert written is not None
        return args[written], work


def _moved(
    operator: Any,
    written: int | None,
    read: int | None,
    args: tuple[Any, ...],
    keywords: Mapping[str, Any],
) -> Begun:
    """Begins an operator on copies."""
    copies = {at: _copied(args[at]) for at in {written, read} if at is not None}
    returned = operator(*(copies.get(at, each) for at, each in enumerate(args)), **keywords)
    work = unboxed(returned[-1] if isinstance(returned, tuple) else returned)

    def finish() -> list[torch.Tensor]:
        work.wait()
        return [] if written is None else _flat(copies[written])

    return Begun([work], finish)


def _reduced(n: Numbers, name: str, *args: Any) -> Begun:
    """Begins a reduction; only the root of `reduce_` gets a result that differs from its input."""
    scatters = "scatter" in name
    tensors, script, op, *rest = args[1:] if scatters else args
    group = torch.distributed.ProcessGroup.unbox(script)
    given = [tensors] if isinstance(tensors, torch.Tensor) else tensors
    whole = [
        each if isinstance(each, torch.Tensor) else torch.cat([part.reshape(-1) for part in each])
        for each in given
    ]
    number = int(op.op())
    kind = _KINDS.get(number, f"ReduceOp {number}")
    begun = _together([begin(n, each, group, kind) for each in whole])

    def finish() -> list[torch.Tensor]:
        results = begun.finish()
        if scatters:
            return [_part(each.reshape(-1), group) for each in results]
        return whole if name == "reduce_" and group.rank() != rest[0] else results

    return Begun(begun.works, finish)


for _name, _written, _read in (
    *(("allgather_", 0, 1), ("_allgather_base_", 0, 1), ("allgather_coalesced_", 0, 1)),
    *(("allgather_into_tensor_coalesced_", 0, 1), ("alltoall_", 0, 1), ("alltoall_base_", 0, 1)),
    *(("broadcast_", 0, 0), ("gather_", 0, 1), ("scatter_", 0, 1), ("send", None, 0)),
    *(("recv_", 0, None), ("recv_any_source_", 0, None)),
):
    _c10d(_name, _written, _read)
for _name, _read in (
    *(("allreduce_", 0), ("allreduce_coalesced_", 0), ("reduce_", 0), ("reduce_scatter_", 1)),
    *(("_reduce_scatter_base_", 1), ("reduce_scatter_tensor_coalesced_", 1)),
):
    _c10d(_name, 0, _read, reduces=True)


# Functional collectives: the first argument is read, and the last one is the group.


def _functional(name: str, begins: Callable[..., tuple[Begun, list[torch.Tensor]]]) -> None:
    """States a functional collective; `begins` also returns tensors like the results."""

    @semantics_of(f"_c10d_functional.{name}", examples=none, between_ranks=True)
    def rule(n: Numbers, given: Tensors, *rest: Any) -> Any:
        inputs = _flat(given)
        begun, like = begins(n, given, *rest)
        outputs = inputs if name.endswith("_") else [torch.empty_like(each) for each in like]
        held = Held(begun.finish, outputs, inputs)
        for each in outputs:  # which may be waited for one after the other
            wait_by_tensor(each, HeldWork(held, begun.works))
        return outputs[0] if isinstance(given, torch.Tensor) else outputs


def _moving(operator: Any) -> Callable[..., tuple[Begun, list[torch.Tensor]]]:
    def begins(n: Numbers, given: Tensors, *rest: Any) -> tuple[Begun, list[torch.Tensor]]:
        own = _flat(operator(_copied(given), *rest))
        return Begun(
            [], lambda: [torch.ops._c10d_functional.wait_tensor(each) for each in own]
        ), own

    return begins


def _reducing(
    n: Numbers, given: Tensors, kind: str, *rest: Any
) -> tuple[Begun, list[torch.Tensor]]:
    group, inputs = group_named(rest[-1]), _flat(given)
    begun = _together([begin(n, each, group, kind) for each in inputs])
    if len(rest) == 1:
        return begun, inputs
    scattered = Begun(begun.works, lambda: [_part(each, group) for each in begun.finish()])
    return scattered, [_part(each, group) for each in inputs]


for _name in (
    *("all_gather_into_tensor", "all_gather_into_tensor_coalesced", "all_to_all_single"),
    *("broadcast", "broadcast_"),
):
    _functional(_name, _moving(getattr(torch.ops._c10d_functional, _name)))
for _name in (
    *("all_reduce", "all_reduce_", "all_reduce_coalesced", "all_reduce_coalesced_"),
    *("reduce_scatter_tensor", "reduce_scatter_tensor_coalesced"),
):
    _functional(_name, _reducing)
