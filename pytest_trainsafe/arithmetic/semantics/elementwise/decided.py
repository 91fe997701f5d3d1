"""Comparisons, clamps, maxima by elements, signs and rounding: what the order of numbers decides.

A clamp selects its argument or a bound, as the run on real numbers did.  The order of residues
would select by chance: a clamp of residues to [-448, 448] is nearly always the constant -448, and
everything behind it equal.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from pytest_trainsafe.arithmetic.numbers import Numbers, Value
from pytest_trainsafe.arithmetic.semantics.examples import one, two, two_or_scalar
from pytest_trainsafe.arithmetic.table import Call, Draw, call, semantics_of


def _comparison(name: str) -> None:
    real = getattr(torch, name)

    @semantics_of(f"aten.{name}", examples=_compared)
    def compare(n: Numbers, x: Value, other: Value) -> Any:
        return n.decide(name, real, x, other)


def _compared(draw: Draw) -> Iterable[Call]:
    same = draw(2, 3)
    return [*two_or_scalar(draw), call(same, same.clone())]


for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    _comparison(_name)


@semantics_of("aten.relu", examples=one)
def relu(n: Numbers, x: torch.Tensor) -> torch.Tensor:
    return n.where(n.positive(x), x, 0)


def _thresholds(draw: Draw) -> Iterable[Call]:
    return [call(draw(2, 3), draw(2, 3), 0), call(draw(2, 3), draw(2, 3), 0.5)]


@semantics_of("aten.threshold_backward", examples=_thresholds)
def threshold_backward(
    n: Numbers, grad: torch.Tensor, x: torch.Tensor, threshold: Value
) -> torch.Tensor:
    return n.where(n.decide("gt", torch.gt, x, threshold), grad, 0)


def _slopes(draw: Draw) -> Iterable[Call]:
    return [call(draw(2, 3)), call(draw(2, 3), 0.25)]


@semantics_of("aten.leaky_relu", examples=_slopes)
def leaky_relu(n: Numbers, x: torch.Tensor, slope: Value = 0.01) -> torch.Tensor:
    return n.where(n.positive(x), x, n.multiply(x, slope))


def _slopes_backward(draw: Draw) -> Iterable[Call]:
    return [call(draw(2, 3), draw(2, 3), 0.25, False)]


@semantics_of("aten.leaky_relu_backward", examples=_slopes_backward)
def leaky_relu_backward(
    n: Numbers, grad: torch.Tensor, x: torch.Tensor, slope: Value, is_result: bool
) -> torch.Tensor:
    return n.where(n.positive(x), grad, n.multiply(grad, slope))


@semantics_of("aten.abs", examples=one)
def abs(n: Numbers, x: torch.Tensor) -> torch.Tensor:
    return n.where(n.positive(x), x, n.negate(x))


@semantics_of(
    "aten.sign",
    "aten.sgn",
    examples=lambda draw: [call(draw.positive(3) * torch.tensor([1, -1, 0]))],
)
def sign(n: Numbers, x: torch.Tensor) -> torch.Tensor:
    return _rounded(n, "sign", x)


def _rounded(n: Numbers, name: str, x: torch.Tensor) -> torch.Tensor:
    rounding = getattr(torch, name)
    return n.lift(n.decide(name, lambda each: rounding(each).to(torch.int64), x))


def _rounding(name: str) -> None:
    @semantics_of(f"aten.{name}", examples=one)
    def round_to(n: Numbers, x: torch.Tensor) -> torch.Tensor:
        """The integer is a decision: it is the same for all inputs nearby."""
        return _rounded(n, name, x)


for _name in ("floor", "ceil", "trunc", "round"):
    _rounding(_name)


def _bounds(draw: Draw) -> Iterable[Call]:
    return [
        call(draw(2, 5), -1.5, 2.0),
        call(draw(2, 5), -1.5),
        call(draw(2, 5), None, 1.5),
        call(draw(2, 5), draw(2, 5) - 4, draw(5) + 4),
    ]


@semantics_of("aten.clamp", examples=_bounds)
def clamp(
    n: Numbers, x: torch.Tensor, min: Value | None = None, max: Value | None = None
) -> torch.Tensor:
    if min is not None:
        x = n.where(n.decide("lt", torch.lt, x, min), min, x)
    if max is not None:
        x = n.where(n.decide("gt", torch.gt, x, max), max, x)
    return x


@semantics_of("aten.hardtanh", examples=lambda draw: [call(draw(2, 5), -1.5, 2.0)])
def hardtanh(n: Numbers, x: torch.Tensor, min_val: Value = -1, max_val: Value = 1) -> torch.Tensor:
    return clamp(n, x, min_val, max_val)


@semantics_of(
    "aten.hardtanh_backward", examples=lambda draw: [call(draw(2, 5), draw(2, 5), -1.5, 2.0)]
)
def hardtanh_backward(
    n: Numbers, grad: torch.Tensor, x: torch.Tensor, min_val: Value, max_val: Value
) -> torch.Tensor:
    above = n.decide("gt", torch.gt, x, min_val)
    return n.where(above & n.decide("lt", torch.lt, x, max_val), grad, 0)


def _bound(draw: Draw) -> Iterable[Call]:
    return [call(draw(2, 5), 0.5), call(draw(2, 5), draw(2, 5))]


@semantics_of("aten.clamp_min", examples=_bound)
def clamp_min(n: Numbers, x: torch.Tensor, min: Value) -> torch.Tensor:
    return clamp(n, x, min)


@semantics_of("aten.clamp_max", examples=_bound)
def clamp_max(n: Numbers, x: torch.Tensor, max: Value) -> torch.Tensor:
    return clamp(n, x, None, max)


@semantics_of("aten.maximum", examples=two)
def maximum(n: Numbers, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return n.shift(n.where(n.decide("ge", torch.ge, x, other), x, other))


@semantics_of("aten.minimum", examples=two)
def minimum(n: Numbers, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return n.where(n.decide("le", torch.le, x, other), x, other)


@semantics_of(
    "aten.logical_not", examples=lambda draw: [call(draw(2, 3) * torch.tensor([0, 1, 0]))]
)
def logical_not(n: Numbers, x: torch.Tensor) -> Any:
    return n.decide("eq", torch.eq, x, 0)


@semantics_of("aten.equal", examples=lambda draw: [call(draw(2, 3), draw(2, 3))])
def equal(n: Numbers, x: torch.Tensor, other: torch.Tensor) -> Any:
    return n.decide("equal", torch.equal, x, other)


@semantics_of("aten._local_scalar_dense", examples=lambda draw: [call(draw())])
def item(n: Numbers, x: torch.Tensor) -> Any:
    """A number that leaves the tensors is the one of the run on real numbers."""
    return n.decide("item", torch.Tensor.item, x)


def _nonzero(draw: Draw) -> Iterable[Call]:
    return [call(draw(2, 3) * draw.mask(2, 3))]


@semantics_of("aten.nonzero", examples=_nonzero)
def nonzero(n: Numbers, x: torch.Tensor) -> Any:
    return n.decide("nonzero", torch.nonzero, x)
