"""Activation functions of pieces, of which a decision chooses one, and their derivatives."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from pytest_trainsafe.arithmetic.numbers import Numbers, Value
from pytest_trainsafe.arithmetic.semantics.elementwise.activations import elu
from pytest_trainsafe.arithmetic.semantics.elementwise.decided import clamp
from pytest_trainsafe.arithmetic.table import Call, Draw, call, semantics_of


def _apart(draw: Draw) -> Iterable[Call]:
    return [call(draw(4, 8) * 2 + 1 / 16)]


def _slopes(draw: Draw) -> Iterable[Call]:
    # torch has a sixth in float32, so gradients are small.
    return [call(draw(4, 8) / 1024, draw(4, 8) * 2 + 1 / 16)]


def _above(n: Numbers, x: Value, bound: Value) -> torch.Tensor:
    mask: torch.Tensor = n.decide("gt", torch.gt, x, bound)
    return mask


def _below(n: Numbers, x: Value, bound: Value) -> torch.Tensor:
    mask: torch.Tensor = n.decide("lt", torch.lt, x, bound)
    return mask


@semantics_of("aten._prelu_kernel", examples=lambda draw: [call(draw(2, 5), draw(5))])
def prelu(n: Numbers, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return n.where(n.positive(x), x, n.multiply(weight, x))


@semantics_of(
    "aten._prelu_kernel_backward", examples=lambda draw: [call(draw(2, 5), draw(2, 5), draw(2, 5))]
)
def prelu_backward(
    n: Numbers, grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    above = n.positive(x)
    by_x = n.where(above, grad, n.multiply(weight, grad))
    return by_x, n.where(above, 0, n.multiply(x, grad))


def _sixth(n: Numbers, x: torch.Tensor) -> torch.Tensor:
    """(x + 3) / 6, between 0 and 1."""
    return n.divide(clamp(n, n.add(x, 3), 0, 6), 6)


def _inside(n: Numbers, x: torch.Tensor) -> torch.Tensor:
    return _above(n, x, -3) & _below(n, x, 3)


@semantics_of("aten.hardsigmoid", examples=_apart)
def hardsigmoid(n: Numbers, x: torch.Tensor) -> torch.Tensor:
    return _sixth(n, x)


@semantics_of("aten.hardsigmoid_backward", examples=_slopes)
def hardsigmoid_backward(n: Numbers, grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return n.where(_inside(n, x), n.divide(grad, 6), 0)


@semantics_of("aten.hardswish", examples=_apart)
def hardswish(n: Numbers, x: torch.Tensor) -> torch.Tensor:
    return n.multiply(x, _sixth(n, x))


@semantics_of("aten.hardswish_backward", examples=_slopes)
def hardswish_backward(n: Numbers, grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """x / 3 + 1 / 2 between -3 and 3."""
    slope = n.add(n.divide(x, 3), 0.5)
    slope = n.where(_below(n, x, 3), n.multiply(grad, slope), grad)
    return n.where(_above(n, x, -3), slope, 0)


def _shrunk(draw: Draw) -> Iterable[Call]:
    return [call(draw(2, 8)), call(draw(2, 8), 1.5)]


@semantics_of("aten.softshrink", examples=_shrunk)
def softshrink(n: Numbers, x: torch.Tensor, bound: Value = 0.5) -> torch.Tensor:
    lower = n.where(_below(n, x, n.negate(bound)), n.add(x, bound), 0)
    return n.where(_above(n, x, bound), n.subtract(x, bound), lower)


@semantics_of("aten.hardshrink", examples=_shrunk)
def hardshrink(n: Numbers, x: torch.Tensor, bound: Value = 0.5) -> torch.Tensor:
    outside = _above(n, x, bound) | _below(n, x, n.negate(bound))
    return n.where(outside, x, 0)


@semantics_of(
    "aten.softshrink_backward", "aten.hardshrink_backward",
    examples=lambda draw: [call(draw(2, 8), draw(2, 8), 1.5)],
)  # fmt: skip
def shrink_backward(n: Numbers, grad: torch.Tensor, x: torch.Tensor, bound: Value) -> torch.Tensor:
    outside = _above(n, x, bound) | _below(n, x, n.negate(bound))
    return n.where(outside, grad, 0)


@semantics_of("aten.threshold", examples=lambda draw: [call(draw(2, 8), 0.5, -1.5)])
def threshold(n: Numbers, x: torch.Tensor, bound: Value, value: Value) -> torch.Tensor:
    return n.where(_above(n, x, bound), x, value)


@semantics_of("aten.celu", examples=lambda draw: [call(draw(2, 3)), call(draw(2, 3), 1.5)])
def celu(n: Numbers, x: torch.Tensor, alpha: float = 1.0) -> torch.Tensor:
    return elu(n, x, alpha, 1.0, 1.0 / alpha)


def _soft(n: Numbers, x: torch.Tensor) -> torch.Tensor:
    """tanh(log(1 + exp(x))), by e = exp(x): (e * e + 2 * e) / (e * e + 2 * e + 2)"""
    grown = n.exp(x)
    part = n.multiply(grown, n.add(grown, 2))
    return n.divide(part, n.add(part, 2))


@semantics_of("aten.mish", examples=lambda draw: [call(draw(2, 3))])
def mish(n: Numbers, x: torch.Tensor) -> torch.Tensor:
    return n.multiply(x, _soft(n, x))


@semantics_of("aten.mish_backward", examples=lambda draw: [call(draw(2, 3), draw(2, 3))])
def mish_backward(n: Numbers, grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    soft = _soft(n, x)
    bent = n.multiply(n.sigmoid(x), n.subtract(1, n.square(soft)))
    return n.multiply(grad, n.add(soft, n.multiply(x, bent)))


def _comparing(name: str) -> None:
    real: Any = getattr(torch, name)

    @semantics_of(
        f"aten.{name}",
        examples=lambda draw: [call(draw(2, 3) * draw.mask(2, 3), draw(2, 3) * draw.mask(2, 3))],
    )
    def compare(n: Numbers, x: Value, other: Value) -> Any:
        return n.decide(name, real, x, other)


for _name in ("logical_and", "logical_or", "logical_xor"):
    _comparing(_name)
