"""Collectives: reductions add in the field, all others move packed numbers as they are.

A backend would add the doubles.  So a reduction gathers the numbers of all ranks and adds them on
each rank; a maximum or minimum is a decision, like that of two tensors on one rank.  Tested with
real ranks in tests/arithmetic/test_arithmetic_collectives.py.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from pytest_trainsafe.arithmetic.errors import ExactError
from pytest_trainsafe.arithmetic.numbers import Numbers
from pytest_trainsafe.arithmetic.semantics.elementwise.decided import maximum, minimum
from pytest_trainsafe.arithmetic.semantics.examples import none
from pytest_trainsafe.arithmetic.table import moves, semantics_of

moves(
    *(
        f"c10d.{name}"
        for name in (
            "allgather_", "_allgather_base_", "allgather_coalesced_",
            "allgather_into_tensor_coalesced_", "alltoall_", "alltoall_base_", "barrier",
            "broadcast_", "gather_", "recv_", "recv_any_source_", "scatter_", "send",
        )
    ),
    *(
        f"_c10d_functional.{name}"
        for name in (
            "all_gather_into_tensor", "all_gather_into_tensor_coalesced",
            "all_gather_into_tensor_out", "all_to_all_single", "broadcast", "broadcast_",
            "wait_tensor", "_wrap_tensor_autograd",
        )
    ),
    *(f"fsdp.{name}" for name in ("all_gather_copy_in", "chunk_cat", "split_with_sizes_copy")),
    examples=none,
)  # fmt: skip

#: torch.distributed.ReduceOp, by number.
_KINDS = {0: "sum", 1: "avg", 3: "min", 4: "max"}
Group = Any  # A torch.distributed.ProcessGroup, or its script object or name.


def reduced(n: Numbers, x: torch.Tensor, group: Group, kind: str) -> torch.Tensor:
    """The reduction of `x` over all ranks of a group, on each of them."""
    parts = [
        torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(group.size())
    ]
    group.allgather([parts], [x.contiguous()]).wait()
    if kind in ("sum", "avg"):
        total = n.total(parts)
        return n.divide(total, len(parts)) if kind == "avg" else total
    if kind in ("min", "max"):
        choose = maximum if kind == "max" else minimum
        return functools.reduce(functools.partial(choose, n), parts)
    raise ExactError(
        f"a reduction of exact numbers over ranks by {kind!r} has no semantics; sum, avg, min and "
        "max have"
    )


def _group(script: Any) -> Group:
    return torch.distributed.ProcessGroup.unbox(script)


def _kind(reduce_op: Any) -> str:
    number = int(reduce_op.op())
    return _KINDS.get(number, f"ReduceOp {number}")


def _done(tensors: list[torch.Tensor], group: Any) -> Any:
    """A completed Work whose future has the tensors, which DistributedDataParallel's reads."""
    return torch.ops.c10d.broadcast_(tensors, group, 0, 0, True, -1)


@semantics_of("c10d.allreduce_", examples=none)
def allreduce(
    n: Numbers,
    tensors: list[torch.Tensor],
    group: Any,
    op: Any,
    sparse: Any = None,
    *options: Any,
    **keywords: Any,
) -> Any:
    for each in tensors:
        each.copy_(reduced(n, each, _group(group), _kind(op)))
    return _done(tensors, group)


@semantics_of("c10d.allreduce_coalesced_", examples=none)
def allreduce_coalesced(
    n: Numbers, tensors: list[torch.Tensor], group: Any, op: Any, *options: Any, **keywords: Any
) -> Any:
    return allreduce(n, tensors, group, op)[1]


@semantics_of("c10d.reduce_", examples=none)
def reduce(
    n: Numbers,
    tensors: list[torch.Tensor],
    group: Any,
    op: Any,
    root: int,
    *options: Any,
    **keywords: Any,
) -> Any:
    """Only the root's tensor is written; the Work is that of a broadcast of copies."""
    ranks = _group(group)
    results = [reduced(n, each, ranks, _kind(op)) for each in tensors]
    if ranks.rank() == root:
        for each, result in zip(tensors, results, strict=True):
            each.copy_(result)
    return _done(results, group)[1]


def _own_part(x: torch.Tensor, group: Group) -> torch.Tensor:
    rows = x.shape[0] // group.size()
    return x[group.rank() * rows : (group.rank() + 1) * rows]


@semantics_of("c10d._reduce_scatter_base_", examples=none)
def reduce_scatter_base(
    n: Numbers,
    output: torch.Tensor,
    x: torch.Tensor,
    group: Any,
    op: Any,
    *options: Any,
    **keywords: Any,
) -> Any:
    ranks = _group(group)
    output.copy_(_own_part(reduced(n, x, ranks, _kind(op)), ranks).reshape(output.shape))
    return output, _done([output.clone()], group)[1]


@semantics_of("c10d.reduce_scatter_tensor_coalesced_", examples=none)
def reduce_scatter_coalesced(
    n: Numbers,
    outputs: list[torch.Tensor],
    inputs: list[torch.Tensor],
    group: Any,
    op: Any,
    *options: Any,
    **keywords: Any,
) -> Any:
    for output, x in zip(outputs, inputs, strict=True):
        reduce_scatter_base(n, output, x, group, op)
    return _done([each.clone() for each in outputs], group)[1]


@semantics_of("c10d.reduce_scatter_", examples=none)
def reduce_scatter(
    n: Numbers,
    outputs: list[torch.Tensor],
    inputs: list[list[torch.Tensor]],
    group: Any,
    op: Any,
    *options: Any,
    **keywords: Any,
) -> Any:
    ranks = _group(group)
    for output, parts in zip(outputs, inputs, strict=True):
        output.copy_(reduced(n, torch.stack(parts), ranks, _kind(op))[ranks.rank()])
    return outputs, _done([each.clone() for each in outputs], group)[1]


def _named(group: Any) -> Group:
    from pytest_trainsafe.compat.distributed.process_groups import (
        group_named,  # imports torch.distributed
    )

    found: Group = group_named(group)
    return found


@semantics_of("_c10d_functional.all_reduce", examples=none)
def functional_all_reduce(n: Numbers, x: torch.Tensor, op: str, group: Any) -> torch.Tensor:
    return reduced(n, x, _named(group), op)


@semantics_of("_c10d_functional.all_reduce_coalesced", examples=none)
def functional_all_reduce_coalesced(
    n: Numbers, tensors: Sequence[torch.Tensor], op: str, group: Any
) -> list[torch.Tensor]:
    return [reduced(n, each, _named(group), op) for each in tensors]


@semantics_of("_c10d_functional.reduce_scatter_tensor", examples=none)
def functional_reduce_scatter(
    n: Numbers, x: torch.Tensor, op: str, size: int, group: Any
) -> torch.Tensor:
    return _own_part(reduced(n, x, _named(group), op), _named(group)).clone()


@semantics_of("_c10d_functional.reduce_scatter_tensor_coalesced", examples=none)
def functional_reduce_scatter_coalesced(
    n: Numbers, tensors: Sequence[torch.Tensor], op: str, size: int, group: Any
) -> list[torch.Tensor]:
    return [functional_reduce_scatter(n, each, op, size, group) for each in tensors]
