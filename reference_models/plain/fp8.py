"""Linear layers in FP8 on a single device: the recipe of `parallel/fp8.py`, written apart.

Input and weight are rounded to e4m3, the gradient of the output to e5m2.  A tensor's scale brings
the largest absolute value of the last steps to the largest number of its format; in the first step
each tensor has the scale of its own largest value.  The weight is rounded once a step.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

#: How many steps count for a scale.
STEPS = 16


def use_fp8(linear: nn.Module) -> None:
    """Let an `nn.Linear` compute in FP8; its parameters stay as they are."""
    assert isinstance(linear, nn.Linear), type(linear)
    linear.forward = PlainFp8(linear)  # type: ignore[assignment]


def finish_step(model: nn.Module) -> None:
    """After the optimizer's step: scales follow the step, and weights are rounded anew."""
    for module in model.modules():
        if isinstance(module.forward, PlainFp8):
            module.forward.finish_step()


class Rounding:
    """Rounds one tensor of a layer to an FP8 dtype, with a scale that follows the steps."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.most = torch.finfo(dtype).max
        self.of_steps: list[Tensor] = []
        self.of_step: list[Tensor] = []

    def __call__(self, tensor: Tensor) -> Tensor:
        """The values of a tensor after rounding, in its own dtype."""
        wide = tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32))
        peak = wide.abs().max()
        self.of_step.append(peak)
        if self.of_steps:
            peak = torch.stack(self.of_steps).max()
        scale = self.most / peak if peak > 0 else torch.ones_like(peak)
        rounded = torch.clamp(wide * scale, min=-self.most, max=self.most).to(self.dtype)
        return (rounded.to(wide.dtype) / scale).to(tensor.dtype)

    def finish_step(self) -> None:
        """Take the largest value of the step into account, and forget the oldest one."""
        if self.of_step:
            self.of_steps = [*self.of_steps, torch.stack(self.of_step).max()][-STEPS:]
            self.of_step = []


class PlainFp8:
    """The forward of one layer."""

    def __init__(self, linear: nn.Linear) -> None:
        self.linear = linear
        self.of_input = Rounding(torch.float8_e4m3fn)
        self.of_weight = Rounding(torch.float8_e4m3fn)
        self.of_gradient = Rounding(torch.float8_e5m2)
        self.weight: Tensor | None = None

    def __call__(self, hidden: Tensor) -> Tensor:
        if self.weight is None:
            self.weight = self.of_weight(self.linear.weight)
        given = _replaced(hidden, self.of_input(hidden))
        product = F.linear(given, _replaced(self.linear.weight, self.weight))
        product = cast(Tensor, _RoundGradient.apply(product, self.of_gradient))  # type: ignore[no-untyped-call]
        bias: Tensor | None = self.linear.bias
        return product if bias is None else product + bias

    def finish_step(self) -> None:
        """The optimizer has made new weights."""
        self.weight = None
        for rounding in (self.of_input, self.of_weight, self.of_gradient):
            rounding.finish_step()


def _replaced(tensor: Tensor, rounded: Tensor) -> Tensor:
    """The rounded values, with the gradient going to the tensor as if it had not been rounded."""
    return cast(Tensor, _Replaced.apply(tensor, rounded))  # type: ignore[no-untyped-call]


class _Replaced(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, rounded: Tensor) -> Tensor:
        return rounded.view_as(rounded)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient, None


class _RoundGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, rounding: Rounding) -> Tensor:
        ctx.rounding = rounding
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return ctx.rounding(gradient), None
