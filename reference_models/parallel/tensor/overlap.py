"""A column-parallel product whose backward overlaps communication and computation.

While the gradient of the input is reduced over tp, the gradient of the weight is computed
(Megatron-LM's `LinearWithGradAccumulationAndAsyncCommunication`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from pytest_trainsafe.reference_models.parallel.axes import Axes
from pytest_trainsafe.reference_models.parallel.collectives import (
    all_gather,
    split,
    start_all_reduce,
    start_reduce_scatter,
)


def overlapped_linear(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    axes: Axes,
    enter: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Maps [batch, sequence, inputs] to [batch, sequence, this rank's outputs].

    With sp, `hidden` is this rank's shard of the sequence.  `enter` turns `hidden` into the tensor
    that is multiplied; by default, with sp, it gathers the shards.
    """
    enter = enter or partial(_whole, axes=axes)
    return cast(Tensor, _Linear.apply(hidden, weight, bias, axes, enter))  # type: ignore[no-untyped-call]


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        axes: Axes,
        enter: Callable[[Tensor], Tensor],
    ) -> Tensor:
        # With sp, keep only the shard of the sequence, and gather again in the backward.
        ctx.save_for_backward(hidden, weight)
        ctx.axes, ctx.biased, ctx.enter = axes, bias is not None, enter
        return F.linear(enter(hidden), weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        hidden, weight = ctx.saved_tensors
        axes: Axes = ctx.axes
        hidden = ctx.enter(hidden)
        own = gradient @ weight
        if axes.sp:
            reduction = start_reduce_scatter(own, 1, axes.tp)
        else:
            reduction = start_all_reduce(own, axes.tp)
        into_weight = gradient.flatten(0, -2).mT @ hidden.flatten(0, -2)
        into_bias = gradient.flatten(0, -2).sum(dim=0) if ctx.biased else None
        total = reduction.wait()
        if axes.planted("tp-overlap-dgrad"):
            # The bug: the input of the reduction instead of its result.
            total = split(own, 1, axes.tp) if axes.sp else own
        return total, into_weight, into_bias, None, None


def _whole(hidden: Tensor, axes: Axes) -> Tensor:
    return all_gather(hidden, 1, axes.tp) if axes.sp else hidden
