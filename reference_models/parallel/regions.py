"""Collectives with derivatives: how activations enter and leave a parallel region.

The backward of each is the forward of another, as with a matrix and its transpose:

    forward            backward
    copy               all-reduce        into a tensor-parallel region
    all-reduce         copy              out of the region
    all-gather         reduce-scatter    into the region, from shards of the sequence
    reduce-scatter     all-gather        out of the region, to shards of the sequence
    split              all-gather        from whole sequences to shards, outside of a region
    join               split             from shards to whole sequences, outside of a region

(Megatron-LM, Shoeybi et al. 2019, section 3; Korthikanti et al. 2022, section 4.2.2.)
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from pytest_trainsafe.reference_models.parallel.axes import Axis
from pytest_trainsafe.reference_models.parallel.collectives import (
    all_gather,
    all_reduce,
    all_to_all,
    reduce_scatter,
    split,
)


def copy_into(tensor: Tensor, axis: Axis) -> Tensor:
    """Returns the same tensor; the backward sums the ranks' gradients."""
    return cast(Tensor, _Copy.apply(tensor, axis))  # type: ignore[no-untyped-call]


def reduce_out(tensor: Tensor, axis: Axis) -> Tensor:
    """Returns the sum of the ranks' tensors; the backward passes its gradient to each rank."""
    return cast(Tensor, _Reduce.apply(tensor, axis))  # type: ignore[no-untyped-call]


def gather_into(tensor: Tensor, dim: int, axis: Axis) -> Tensor:
    """Returns the ranks' tensors joined along `dim`.

    The backward sums the ranks' gradients of the whole and gives each rank its part.
    """
    return cast(Tensor, _Gather.apply(tensor, dim, axis))  # type: ignore[no-untyped-call]


def scatter_out(tensor: Tensor, dim: int, axis: Axis) -> Tensor:
    """Returns this rank's part, along `dim`, of the sum of the ranks' tensors.

    The backward joins the parts' gradients.
    """
    return cast(Tensor, _Scatter.apply(tensor, dim, axis))  # type: ignore[no-untyped-call]


def split_into_shards(tensor: Tensor, dim: int, axis: Axis) -> Tensor:
    """Returns this rank's part, along `dim`, of a tensor that all ranks hold.

    The backward joins the parts' gradients.
    """
    return cast(Tensor, _Split.apply(tensor, dim, axis))  # type: ignore[no-untyped-call]


def join_shards(tensor: Tensor, dim: int, axis: Axis) -> Tensor:
    """Returns the ranks' tensors joined along `dim`.

    All ranks must compute the same from the result, so that its gradient is the same on all ranks.
    The backward gives each rank its part of this gradient, without a sum over ranks.
    """
    return cast(Tensor, _Join.apply(tensor, dim, axis))  # type: ignore[no-untyped-call]


def exchange(tensor: Tensor, send: list[int], receive: list[int], axis: Axis) -> Tensor:
    """Sends the first `send[0]` rows to rank 0, the next `send[1]` rows to rank 1, and so on.

    Returns the rows received, in rank order: `receive[r]` rows from rank r.  The backward sends the
    rows' gradients back.
    """
    return cast(Tensor, _Exchange.apply(tensor, send, receive, axis))  # type: ignore[no-untyped-call]


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, axis: Axis) -> Tensor:
        ctx.axis = axis
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return all_reduce(gradient, ctx.axis), None


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, axis: Axis) -> Tensor:
        return all_reduce(tensor, axis)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, dim: int, axis: Axis) -> Tensor:
        ctx.dim, ctx.axis = dim, axis
        return all_gather(tensor, dim, axis)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return reduce_scatter(gradient, ctx.dim, ctx.axis), None, None


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, dim: int, axis: Axis) -> Tensor:
        ctx.dim, ctx.axis = dim, axis
        return reduce_scatter(tensor, dim, axis)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return all_gather(gradient, ctx.dim, ctx.axis), None, None


class _Split(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, dim: int, axis: Axis) -> Tensor:
        ctx.dim, ctx.axis = dim, axis
        return split(tensor, dim, axis)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return all_gather(gradient, ctx.dim, ctx.axis), None, None


class _Join(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, dim: int, axis: Axis) -> Tensor:
        ctx.dim, ctx.axis = dim, axis
        return all_gather(tensor, dim, axis)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return split(gradient, ctx.dim, ctx.axis), None, None


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, send: list[int], receive: list[int], axis: Axis
    ) -> Tensor:
        ctx.send, ctx.receive, ctx.axis = send, receive, axis
        return all_to_all(tensor, send, receive, axis)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return all_to_all(gradient, ctx.receive, ctx.send, ctx.axis), None, None, None
