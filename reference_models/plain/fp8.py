"""Linear layers in FP8 on a single device: an independent version of `parallel/fp8.py`.

Input and weight are rounded to e4m3, the gradient of the output to e5m2.  A tensor's scale maps the
largest absolute value of the last steps to the largest number of its format.  In the first step,
the scale of each tensor follows from its own largest absolute value.  The weight is rounded once
per step.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

#: The number of last steps whose largest values determine a scale.
STEPS = 16


def use_fp8(linear: nn.Module) -> None:
    """Make an `nn.Linear` compute in FP8; its parameters do not change."""
    assert isinstance(linear, nn.Linear), type(linear)
    linear.forward = PlainFp8(linear)  # type: ignore[assignment]


def finish_step(model: nn.Module) -> None:
    """Update the scales after an optimizer step, and drop the rounded weights.

    Each weight is rounded again when it is next used.
    """
    for module in model.modules():
        if isinstance(module.forward, PlainFp8):
            module.forward.finish_step()


class Rounding:
    """Rounds one tensor of a layer to an FP8 dtype, with a scale from the values of past steps."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.most = torch.finfo(dtype).max
        self.of_steps: list[Tensor] = []
        self.of_step: list[Tensor] = []

    def __call__(self, tensor: Tensor) -> Tensor:
        """Return the rounded values of a tensor, in the tensor's dtype."""
        wide = tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32))
        peak = wide.abs().max()
        self.of_step.append(peak)
        if self.of_steps:
            peak = torch.stack(self.of_steps).max()
        scale = self.most / peak if peak > 0 else torch.ones_like(peak)
        rounded = torch.clamp(wide * scale, min=-self.most, max=self.most).to(self.dtype)
        return (rounded.to(wide.dtype) / scale).to(tensor.dtype)

    def finish_step(self) -> None:
        """Add the largest value of this step to those of the past steps; keep the last STEPS."""
        if self.of_step:
            self.of_steps = [*self.of_steps, torch.stack(self.of_step).max()][-STEPS:]
            self.of_step = []


class PlainFp8:
    """The forward of one linear layer in FP8; it replaces the forward of the `nn.Linear`."""

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
        """Update the scales after an optimizer step, and drop the rounded weight."""
        self.weight = None
        for rounding in (self.of_input, self.of_weight, self.of_gradient):
            rounding.finish_step()


def _replaced(tensor: Tensor, rounded: Tensor) -> Tensor:
    """Return the rounded values; their gradient goes to `tensor` as if it were not rounded."""
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
