"""Collectives along one dimension of a tensor, without derivatives; `regions.py` adds derivatives.

torch's single-tensor collectives support only the first dimension; these support any dimension.
They do not modify their arguments, and on an axis of one rank they do not communicate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pytest_trainsafe.reference_models.parallel.axes import Axis

# Newer torch has the same collectives under new names, and warns of the old ones.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def all_reduce(
    tensor: Tensor, axis: Axis, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM
) -> Tensor:
    """The sum, or the reduction `op`, of the tensors on the ranks of `axis`; each rank gets it."""
    if axis.size == 1:
        return tensor
    total = tensor.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, op=op, group=axis.group)
    return total


def all_gather(tensor: Tensor, dim: int, axis: Axis) -> Tensor:
    """The tensors on the ranks of `axis`, joined along `dim` in rank order; each rank gets all."""
    return start_all_gather(tensor, dim, axis).wait()


def reduce_scatter(tensor: Tensor, dim: int, axis: Axis) -> Tensor:
    """This rank's part, along `dim`, of the sum of the tensors on the ranks of `axis`."""
    return start_reduce_scatter(tensor, dim, axis).wait()


def split(tensor: Tensor, dim: int, axis: Axis) -> Tensor:
    """This rank's part of `tensor` along `dim`, without communication."""
    return tensor.chunk(axis.size, dim)[axis.rank].contiguous()


def all_to_all(tensor: Tensor, send: list[int], receive: list[int], axis: Axis) -> Tensor:
    """Sends the first `send[0]` rows to rank 0, the next `send[1]` rows to rank 1, and so on.

    Returns the rows received, in rank order: `receive[r]` rows from rank r.
    """
    if axis.size == 1:
        return tensor
    rows = tensor.contiguous()
    came = rows.new_empty((sum(receive), *rows.shape[1:]))
    dist.all_to_all_single(came, rows, receive, send, group=axis.group)
    return came


def pass_on(tensor: Tensor, axis: Axis) -> Tensor:
    """Sends `tensor` to the next rank in a ring; returns the tensor of the previous rank."""
    if axis.size == 1:
        return tensor
    assert axis.group is not None
    after, before = (
        dist.get_global_rank(axis.group, (axis.rank + way) % axis.size) for way in (1, -1)
    )
    given, taken = (
        tensor.contiguous(),
        torch.empty_like(tensor, memory_format=torch.contiguous_format),
    )
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, given, after, axis.group),
            dist.P2POp(dist.irecv, taken, before, axis.group),
        ]
    )
    for work in works:
        work.wait()
    return taken


@dataclass(frozen=True, slots=True)
class Underway:
    """A collective that was started: `wait` for its result before using it."""

    result: Tensor
    work: Any = None
    dim: int = 0

    def wait(self) -> Tensor:
        """Waits until the collective has completed, and returns its result."""
        if self.work is not None:
            self.work.wait()
        return self.result.movedim(0, self.dim).contiguous()


def start_all_reduce(tensor: Tensor, axis: Axis) -> Underway:
    """Starts `all_reduce`; `tensor` must not be changed before it has completed."""
    if axis.size == 1:
        return Underway(tensor)
    total = tensor.clone(memory_format=torch.contiguous_format)
    return Underway(total, dist.all_reduce(total, group=axis.group, async_op=True))


def start_reduce_scatter(tensor: Tensor, dim: int, axis: Axis) -> Underway:
    """Starts `reduce_scatter`; `tensor` must not be changed before it has completed."""
    if axis.size == 1:
        return Underway(tensor)
    whole = tensor.movedim(dim, 0).contiguous()
    part = whole.new_empty((whole.shape[0] // axis.size, *whole.shape[1:]))
    return Underway(part, _reduce_scatter(part, whole, group=axis.group, async_op=True), dim)


def start_all_gather(tensor: Tensor, dim: int, axis: Axis) -> Underway:
    """Starts `all_gather`; `tensor` must not be changed before it has completed."""
    if axis.size == 1:
        return Underway(tensor)
    part = tensor.movedim(dim, 0).contiguous()
    whole = part.new_empty((axis.size * part.shape[0], *part.shape[1:]))
    return Underway(whole, _all_gather(whole, part, group=axis.group, async_op=True), dim)
