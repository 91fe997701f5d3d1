"""Functions by elements that training code rarely uses, most of them uninterpreted."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from pytest_trainsafe.arithmetic.numbers import Numbers, Parity, Value
from pytest_trainsafe.arithmetic.semantics.elementwise.activations import erf
from pytest_trainsafe.arithmetic.semantics.elementwise.pointwise import div
from pytest_trainsafe.arithmetic.semantics.examples import one, one_positive, two, two_or_scalar
from pytest_trainsafe.arithmetic.table import Call, Draw, call, semantics_of


def _small(draw: Draw) -> Iterable[Call]:
    return [call(draw(2, 3) / 8)]


def _above_one(draw: Draw) -> Iterable[Call]:
    return [call(draw.positive(2, 3) + 1)]


def _uninterpreted(
    name: str, examples: object, parity: Parity | None = None, at_zero: int | None = None
) -> None:
    real = getattr(torch, name)

    @semantics_of(f"aten.{name}", examples=examples)  # type: ignore[arg-type]
    def function(n: Numbers, x: Value) -> torch.Tensor:
        return n.function(name, real, x, parity=parity, at_zero=at_zero)


for _name in ("asin", "atanh"):
    _uninterpreted(_name, _small, "odd", 0)
for _name in ("atan", "asinh"):
    _uninterpreted(_name, one, "odd", 0)
_uninterpreted("acos", _small)
_uninterpreted("acosh", _above_one)
_uninterpreted("lgamma", one_positive)
_uninterpreted("digamma", one_positive)


@semantics_of("aten.atan2", examples=two)
def atan2(n: Numbers, x: Value, other: Value) -> torch.Tensor:
    return n.function("atan2", torch.atan2, x, other)


@semantics_of("aten.tan", examples=one)
def tan(n: Numbers, x: Value) -> torch.Tensor:
    sine = n.function("sin", torch.sin, x, parity="odd", at_zero=0)
    return n.divide(sine, n.function("cos", torch.cos, x, parity="even", at_zero=1))


@semantics_of("aten.sinh", examples=one)
def sinh(n: Numbers, x: Value) -> torch.Tensor:
    return n.multiply(0.5, n.subtract(n.exp(x), n.exp(n.negate(x))))


@semantics_of("aten.cosh", examples=one)
def cosh(n: Numbers, x: Value) -> torch.Tensor:
    return n.multiply(0.5, n.add(n.exp(x), n.exp(n.negate(x))))


@semantics_of("aten.erfc", examples=one)
def erfc(n: Numbers, x: Value) -> torch.Tensor:
    return n.subtract(1, erf(n, x))


@semantics_of("aten.log10", examples=one_positive)
def log10(n: Numbers, x: Value) -> torch.Tensor:
    return n.divide(n.log(x), math.log(10))


@semantics_of("aten.fmod", examples=two_or_scalar)
def fmod(n: Numbers, x: Value, other: Value) -> torch.Tensor:
    return n.subtract(x, n.multiply(div(n, x, other, "trunc"), other))


@semantics_of("aten.frac", examples=one)
def frac(n: Numbers, x: Value) -> torch.Tensor:
    return n.subtract(x, div(n, x, 1, "trunc"))


def _with_zeros(draw: Draw) -> Iterable[Call]:
    return [call(draw(2, 3) * draw.mask(2, 3), draw.positive(2, 3))]


@semantics_of("aten.xlogy", examples=_with_zeros)
def xlogy(n: Numbers, x: Value, other: Value) -> torch.Tensor:
    """x * log(y), and zero where x is zero, whatever y is."""
    nothing = n.decide("eq", torch.eq, x, 0)
    return n.where(nothing, 0, n.multiply(x, n.log(n.where(nothing, 1, other))))
