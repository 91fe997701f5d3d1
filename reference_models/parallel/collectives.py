"""Collectives along one dimension of a tensor, without derivatives.  See `regions.py` for those.

torch's single-tensor collectives join and cut the first dimension only; here, any.
Every one leaves its argument alone, and does nothing on an axis of one rank.
"""

from __future__ import annotations

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
    """The sum (or other reduction) over the axis, on every rank."""
    if axis.size == 1:
        return tensor
    total = tensor.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, op=op, group=axis.group)
    return total


def all_gather(tensor: Tensor, dim: int, axis: Axis) -> Tensor:
    """The ranks' tensors joined along `dim`, in rank order, on every rank."""
    if axis.size == 1:
        return tensor
    part = tensor.movedim(dim, 0).contiguous()
    whole = part.new_empty((axis.size * part.shape[0], *part.shape[1:]))
    _all_gather(whole, part, group=axis.group)
    return whole.movedim(0, dim).contiguous()


def reduce_scatter(tensor: Tensor, dim: int, axis: Axis) -> Tensor:
    """This rank's part, along `dim`, of the sum over the axis."""
    if axis.size == 1:
        return tensor
    whole = tensor.movedim(dim, 0).contiguous()
    part = whole.new_empty((whole.shape[0] // axis.size, *whole.shape[1:]))
    _reduce_scatter(part, whole, group=axis.group)
    return part.movedim(0, dim).contiguous()


def split(tensor: Tensor, dim: int, axis: Axis) -> Tensor:
    """This rank's part of `tensor` along `dim`; says nothing to anybody."""
    return tensor.chunk(axis.size, dim)[axis.rank].contiguous()
