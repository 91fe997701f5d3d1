"""Sums, products, powers, exponentials and roots by elements."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from pytest_trainsafe.arithmetic.numbers import Numbers, Value
from pytest_trainsafe.arithmetic.semantics.examples import one, one_positive, two_or_scalar
from pytest_trainsafe.arithmetic.table import Call, Draw, call, semantics_of


def scaled(n: Numbers, x: Value, factor: Value) -> Value:
    """x * factor, and x itself for the factor 1."""
    return x if not isinstance(factor, torch.Tensor) and factor == 1 else n.multiply(x, factor)


def _with_alpha(draw: Draw) -> Iterable[Call]:
    return [*two_or_scalar(draw), call(draw(2, 3), draw(3), alpha=-2.5)]


@semantics_of("aten.add", examples=_with_alpha)
def add(n: Numbers, x: Value, other: Value, alpha: Value = 1) -> torch.Tensor:
    return n.add(x, scaled(n, other, alpha))


@semantics_of("aten.sub", examples=_with_alpha)
def sub(n: Numbers, x: Value, other: Value, alpha: Value = 1) -> torch.Tensor:
    return n.subtract(x, scaled(n, other, alpha))


@semantics_of("aten.rsub", examples=_with_alpha)
def rsub(n: Numbers, x: Value, other: Value, alpha: Value = 1) -> torch.Tensor:
    return n.subtract(other, scaled(n, x, alpha))


@semantics_of("aten.mul", examples=two_or_scalar)
def mul(n: Numbers, x: Value, other: Value) -> torch.Tensor:
    return n.multiply(x, other)


def _divisions(draw: Draw) -> Iterable[Call]:
    rounded = [call(draw(2, 3), draw(3), rounding_mode=mode) for mode in (None, "floor", "trunc")]
    return [*two_or_scalar(draw), *rounded]


@semantics_of("aten.div", examples=_divisions)
def div(n: Numbers, x: Value, other: Value, rounding_mode: str | None = None) -> torch.Tensor:
    quotient = n.divide(x, other)
    if rounding_mode is None:
        return quotient
    rounding = torch.floor if rounding_mode == "floor" else torch.trunc
    return n.lift(n.decide(rounding_mode, lambda each: rounding(each).to(torch.int64), quotient))


@semantics_of("aten.remainder", examples=two_or_scalar)
def remainder(n: Numbers, x: Value, other: Value) -> torch.Tensor:
    return n.subtract(x, n.multiply(div(n, x, other, "floor"), other))


@semantics_of("aten.neg", examples=one)
def neg(n: Numbers, x: Value) -> torch.Tensor:
    return n.negate(x)


@semantics_of("aten.reciprocal", examples=one)
def reciprocal(n: Numbers, x: Value) -> torch.Tensor:
    return n.inverse(x)


@semantics_of("aten.sqrt", examples=one_positive)
def sqrt(n: Numbers, x: Value) -> torch.Tensor:
    return n.sqrt(x)


@semantics_of("aten.rsqrt", examples=one_positive)
def rsqrt(n: Numbers, x: Value) -> torch.Tensor:
    return n.rsqrt(x)


@semantics_of("aten.exp", examples=one)
def exp(n: Numbers, x: Value) -> torch.Tensor:
    return n.exp(x)


@semantics_of("aten.expm1", examples=one)
def expm1(n: Numbers, x: Value) -> torch.Tensor:
    return n.subtract(n.exp(x), 1)


@semantics_of("aten.exp2", examples=one)
def exp2(n: Numbers, x: Value) -> torch.Tensor:
    return n.exp(n.multiply(x, math.log(2)))


@semantics_of("aten.log", examples=one_positive)
def log(n: Numbers, x: Value) -> torch.Tensor:
    return n.log(x)


@semantics_of("aten.log1p", examples=one_positive)
def log1p(n: Numbers, x: Value) -> torch.Tensor:
    return n.log(n.add(1, x))


@semantics_of("aten.log2", examples=one_positive)
def log2(n: Numbers, x: Value) -> torch.Tensor:
    return n.divide(n.log(x), math.log(2))


def _powers(draw: Draw) -> Iterable[Call]:
    exponents = (2, 3, -1, -2, 0, 1, 0.5, -0.5, 1.5, 2.0, 0.3)
    return [
        *(call(draw.positive(2, 3), exponent) for exponent in exponents),
        call(draw.positive(2, 3), draw(3)),
        call(2.5, draw(3)),
    ]


@semantics_of("aten.pow", examples=_powers)
def pow(n: Numbers, x: Value, exponent: Value) -> torch.Tensor:
    """Integer and half-integer powers by products and roots; others are uninterpreted."""
    if isinstance(exponent, torch.Tensor):
        return n.function("pow", torch.pow, x, exponent)
    twice = 2 * exponent
    if twice != int(twice):
        return n.function("pow", torch.pow, x, exponent)
    if exponent == int(exponent):
        return n.power(x, int(exponent))
    return _half_power(n, x, int(twice))


def _half_power(n: Numbers, x: Value, twice: int) -> torch.Tensor:
    """x ** (twice / 2) for an odd `twice`."""
    if twice < 0:
        return n.inverse(_half_power(n, x, -twice))
    root = n.sqrt(x)
    return root if twice == 1 else n.multiply(root, n.power(x, twice // 2))


def _three(draw: Draw) -> Iterable[Call]:
    return [
        call(draw(2, 3), draw(2, 3), draw(2, 3)),
        call(draw(2, 3), draw(3), draw(2, 1), value=-1.5),
    ]


@semantics_of("aten.addcmul", examples=_three)
def addcmul(n: Numbers, x: Value, a: Value, b: Value, value: Value = 1) -> torch.Tensor:
    return n.add(x, scaled(n, n.multiply(a, b), value))


@semantics_of("aten.addcdiv", examples=_three)
def addcdiv(n: Numbers, x: Value, a: Value, b: Value, value: Value = 1) -> torch.Tensor:
    return n.add(x, scaled(n, n.divide(a, b), value))


def _lerps(draw: Draw) -> Iterable[Call]:
    return [
        call(draw(2, 3), draw(2, 3), 0.25),
        call(draw(2, 3), draw(2, 3), 0.75),
        call(draw(2, 3), draw(2, 3), draw(2, 3)),
    ]


@semantics_of("aten.lerp", examples=_lerps)
def lerp(n: Numbers, x: Value, end: Value, weight: Value) -> torch.Tensor:
    return n.add(x, n.multiply(weight, n.subtract(end, x)))
