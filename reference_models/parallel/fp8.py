"""Linear layers in FP8: input and weight in e4m3, the gradient of the output in e5m2.

The products accumulate in the wider dtype, as in hardware.  `apply.py` uses these layers on a
single device too: the recipe changes results, so the reference must follow it.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_trainsafe.reference_models.parallel.axes import Axes
from pytest_trainsafe.reference_models.parallel.collectives import (
    all_gather,
    all_reduce,
    reduce_scatter,
)
from pytest_trainsafe.reference_models.parallel.scaling import (
    BACKWARD,
    FORWARD,
    Quantizer,
    finish_step,
    values_of,
)
from pytest_trainsafe.reference_models.parallel.tensor.linear import (
    ColumnParallelLinear,
    RowParallelLinear,
)
from pytest_trainsafe.reference_models.parallel.tensor.overlap import overlapped_linear

Linear = nn.Linear | ColumnParallelLinear | RowParallelLinear


def use_fp8(linear: nn.Module, axes: Axes) -> None:
    """Makes a linear layer compute in FP8; its parameters and its name stay as they are."""
    linear.forward = Fp8Forward(linear, axes)


def finish_fp8_step(model: nn.Module, axes: Axes) -> None:
    """Updates the scales and makes the next forward cast the weights to FP8 again.

    Called after the optimizer's step.
    """
    layers = [m.forward for m in model.modules() if isinstance(m.forward, Fp8Forward)]
    finish_step([quantizer for layer in layers for quantizer in layer.quantizers], axes)
    for layer in layers:
        layer.fresh = False


class Fp8Forward:
    """The forward of one linear layer in FP8, with its scales and the cast weight of the step."""

    def __init__(self, linear: nn.Module, axes: Axes) -> None:
        assert isinstance(linear, Linear), type(linear)
        self.linear: Linear = linear
        self.axes = axes
        self.input = Quantizer(FORWARD, axes)
        self.weight = Quantizer(FORWARD, axes)
        self.gradient = Quantizer(BACKWARD, axes)
        self.quantizers = (self.input, self.weight, self.gradient)
        self.cast: Tensor | None = None
        self.fresh = False

    def __call__(self, hidden: Tensor) -> Tensor:
        linear, weight = self.linear, self._cast_weight()
        if isinstance(linear, ColumnParallelLinear) and self.axes.techniques.tp_overlap:
            product = overlapped_linear(hidden, weight, None, self.axes, self.enter)
        else:
            product = F.linear(cast(Tensor, _Enter.apply(hidden, self)), weight)  # type: ignore[no-untyped-call]
        product = cast(Tensor, _CastGradient.apply(product, self.gradient))  # type: ignore[no-untyped-call]
        if isinstance(linear, RowParallelLinear):
            product = linear.leave(product)
        return product if linear.bias is None else product + linear.bias

    @property
    def gathers(self) -> bool:
        """Whether the input is a shard of the sequence."""
        return isinstance(self.linear, ColumnParallelLinear) and self.axes.sp

    def enter(self, hidden: Tensor) -> Tensor:
        """The input rounded to FP8; with sp, the gathered shards of the sequence.

        The shards are sent as FP8 codes, with a quarter of float32's bytes.
        """
        codes, scale = self.input.codes(hidden)
        if self.gathers:
            bytes_of_all = all_gather(codes.view(torch.uint8), 1, self.axes.tp)
            codes = bytes_of_all.view(codes.dtype)
        return values_of(codes, scale, hidden.dtype)

    def _cast_weight(self) -> Tensor:
        """The weight rounded to FP8; it is cast once in a step, for all micro-batches."""
        stale = not self.fresh
        if self.axes.planted("fp8-stale-weight"):
            # The bug: a forward without autograd is taken for inference, where weights are fixed.
            stale = stale and torch.is_grad_enabled()
        if self.cast is None or stale:
            self.cast = self.weight.rounded(self.linear.weight)
            self.fresh = True
        return cast(Tensor, _Cast.apply(self.linear.weight, self.cast))  # type: ignore[no-untyped-call]


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, layer: Fp8Forward) -> Tensor:
        ctx.layer = layer
        return layer.enter(hidden)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        layer: Fp8Forward = ctx.layer
        if layer.gathers:
            return reduce_scatter(gradient, 1, layer.axes.tp), None
        if isinstance(layer.linear, ColumnParallelLinear):
            return all_reduce(gradient, layer.axes.tp), None
        return gradient, None


class _Cast(torch.autograd.Function):
    """Returns `rounded` in place of `tensor`, and passes the gradient of the result to `tensor`."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, rounded: Tensor) -> Tensor:
        return rounded.view_as(rounded)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient, None


class _CastGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, quantizer: Quantizer) -> Tensor:
        ctx.quantizer = quantizer
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return ctx.quantizer.rounded(gradient), None
