"""Collectives with derivatives: how activations enter and leave a parallel region.

Each is the adjoint of another, as matrices are of their transposes:

    forward            backward
    copy               all-reduce        into a tensor-parallel region
    all-reduce         copy              out of it
    all-gather         reduce-scatter    into it, from shards of the sequence
    reduce-scatter     all-gather        out of it, to shards of the sequence
    split              all-gather        from whole sequences to shards, without a region
    join               split             from shards to whole sequences, without one

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
    """The same tensor; its gradient is the sum of the ranks' gradients."""
    return cast(Tensor, _Copy.apply(tensor, axis))  # type: ignore[no-untyped-call]


def reduce_out(tensor: Tensor, axis: Axis) -> Tensor:
    """The sum of the ranks' tensors; its gradient, the same on all ranks, goes to each."""
    return cast(Tensor, _Reduce.apply(tensor, axis))  # type: ignore[no-untyped-call]


def gather_into(tensor: Tensor, dim: int, axis: Axis) -> Tensor:
    """The ranks' tensors joined; each rank's gradient for the whole is summed and cut up."""
    return cast(Tensor, _Gather.apply(tensor, dim, axis))  # type: ignore[no-untyped-call]


def scatter_out(tensor: Tensor, dim: int, axis: Axis) -> Tensor:
    """This rank's part of the sum; the gradients of the parts are joined."""
    return cast(Tensor, _Scatter.apply(tensor, dim, axis))  # type: ignore[no-untyped-call]


def split_into_shards(tensor: Tensor, dim: int, axis: Axis) -> Tensor:
    """This rank's part of a tensor that all ranks hold; the gradients of the parts are joined."""
    return cast(Tensor, _Split.apply(tensor, dim, axis))  # type: ignore[no-untyped-call]


def join_shards(tensor: Tensor, dim: int, axis: Axis) -> Tensor:
    """The ranks' tensors joined, to be used alike by all; the gradient is cut up again."""
    return cast(Tensor, _Join.apply(tensor, dim, axis))  # type: ignore[no-untyped-call]


def exchange(tensor: Tensor, send: list[int], receive: list[int], axis: Axis) -> Tensor:
    """Send the first `send[0]` rows to rank 0 and so on; the rows received, by rank of origin.

    The gradients of the rows go back to where they came from.
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
