"""Activation functions and their derivatives, by exp where they are made of it.

So x * sigmoid(x) equals silu(x), and 1 / (1 + exp(-x)) equals sigmoid(x).  erf, sin and cos are
uninterpreted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from pytest_trainsafe.arithmetic.numbers import Numbers, Value
from pytest_trainsafe.arithmetic.semantics.examples import one
from pytest_trainsafe.arithmetic.table import Call, Draw, call, semantics_of


def _gradient(draw: Draw) -> Iterable[Call]:
    return [call(draw(2, 3), draw(2, 3))]


@semantics_of("aten.sigmoid", examples=one)
def sigmoid(n: Numbers, x: torch.Tensor) -> torch.Tensor:
    return n.sigmoid(x)


@semantics_of("aten.sigmoid_backward", examples=_gradient)
def sigmoid_backward(n: Numbers, grad: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    return n.multiply(grad, n.multiply(result, n.subtract(1, result)))


@semantics_of("aten.tanh", examples=one)
def tanh(n: Numbers, x: torch.Tensor) -> torch.Tensor:
    return n.tanh(x)


@semantics_of("aten.tanh_backward", examples=_gradient)
def tanh_backward(n: Numbers, grad: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    return n.multiply(grad, n.subtract(1, n.square(result)))


@semantics_of("aten.silu", examples=one)
def silu(n: Numbers, x: torch.Tensor) -> torch.Tensor:
    return n.multiply(x, n.sigmoid(x))


@semantics_of("aten.silu_backward", examples=_gradient)
def silu_backward(n: Numbers, grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    gate = n.sigmoid(x)
    slope = n.multiply(gate, n.add(1, n.multiply(x, n.subtract(1, gate))))
    return n.multiply(grad, slope)


def erf(n: Numbers, x: Value) -> torch.Tensor:
    return n.function("erf", torch.erf, x, parity="odd", at_zero=0)


semantics_of("aten.erf", examples=one)(erf)


def _erfinv(draw: Draw) -> Iterable[Call]:
    return [call(draw(2, 3) / 8)]


@semantics_of("aten.erfinv", examples=_erfinv)
def erfinv(n: Numbers, x: torch.Tensor) -> torch.Tensor:
    return n.function("erfinv", torch.erfinv, x, parity="odd", at_zero=0)


@semantics_of("aten.sin", examples=one)
def sin(n: Numbers, x: torch.Tensor) -> torch.Tensor:
    return n.function("sin", torch.sin, x, parity="odd", at_zero=0)


@semantics_of("aten.cos", examples=one)
def cos(n: Numbers, x: torch.Tensor) -> torch.Tensor:
    return n.function("cos", torch.cos, x, parity="even", at_zero=1)


def _gelu(draw: Draw) -> Iterable[Call]:
    return [call(draw(2, 3)), call(draw(2, 3), approximate="tanh")]


def _cubic(n: Numbers, x: torch.Tensor) -> torch.Tensor:
    """root(2 / pi) * (x + 0.044715 * x ** 3)"""
    return n.multiply(math.sqrt(2 / math.pi), n.add(x, n.multiply(0.044715, n.power(x, 3))))


def _normal_share(n: Numbers, x: torch.Tensor) -> torch.Tensor:
    """The distribution function of the normal distribution."""
    return n.multiply(0.5, n.add(1, erf(n, n.multiply(x, math.sqrt(0.5)))))


@semantics_of("aten.gelu", examples=_gelu)
def gelu(n: Numbers, x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    if approximate == "tanh":
        return n.multiply(n.multiply(0.5, x), n.add(1, n.tanh(_cubic(n, x))))
    return n.multiply(x, _normal_share(n, x))


def _gelu_gradient(draw: Draw) -> Iterable[Call]:
    return [call(draw(2, 3), draw(2, 3)), call(draw(2, 3), draw(2, 3), approximate="tanh")]


@semantics_of("aten.gelu_backward", examples=_gelu_gradient)
def gelu_backward(
    n: Numbers, grad: torch.Tensor, x: torch.Tensor, approximate: str = "none"
) -> torch.Tensor:
    if approximate == "tanh":
        bent = n.tanh(_cubic(n, x))
        inner = n.multiply(math.sqrt(2 / math.pi), n.add(1, n.multiply(3 * 0.044715, n.square(x))))
        left = n.multiply(0.5, n.add(1, bent))
        right = n.multiply(n.multiply(0.5, x), n.multiply(n.subtract(1, n.square(bent)), inner))
        return n.multiply(grad, n.add(left, right))
    density = n.multiply(n.exp(n.multiply(-0.5, n.square(x))), 1 / math.sqrt(2 * math.pi))
    return n.multiply(grad, n.add(_normal_share(n, x), n.multiply(x, density)))


def _softplus(draw: Draw) -> Iterable[Call]:
    return [call(draw(2, 3)), call(draw(2, 3), 2.0, 1.5)]


@semantics_of("aten.softplus", examples=_softplus)
def softplus(n: Numbers, x: torch.Tensor, beta: Value = 1, threshold: Value = 20) -> torch.Tensor:
    inner = n.multiply(x, beta)
    soft = n.divide(n.log(n.add(1, n.exp(inner))), beta)
    return n.where(n.decide("gt", torch.gt, inner, threshold), x, soft)


def _softplus_gradient(draw: Draw) -> Iterable[Call]:
    return [call(draw(2, 3), draw(2, 3), 1, 20), call(draw(2, 3), draw(2, 3), 2.0, 1.5)]


@semantics_of("aten.softplus_backward", examples=_softplus_gradient)
def softplus_backward(
    n: Numbers, grad: torch.Tensor, x: torch.Tensor, beta: Value, threshold: Value
) -> torch.Tensor:
    inner = n.multiply(x, beta)
    above = n.decide("gt", torch.gt, inner, threshold)
    return n.where(above, grad, n.multiply(grad, n.sigmoid(inner)))


@semantics_of("aten.elu", examples=lambda draw: [call(draw(2, 3)), call(draw(2, 3), 1.5, 2, 0.5)])
def elu(
    n: Numbers, x: torch.Tensor, alpha: Value = 1, scale: Value = 1, input_scale: Value = 1
) -> torch.Tensor:
    curve = n.multiply(alpha, n.subtract(n.exp(n.multiply(x, input_scale)), 1))
    return n.multiply(scale, n.where(n.positive(x), x, curve))


@semantics_of("aten.log_sigmoid_forward", examples=lambda draw: [call(draw(2, 3))])
def log_sigmoid_forward(n: Numbers, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """log(1 / (1 + exp(-x))), and exp(-abs(x)), which the derivative uses."""
    small = n.exp(n.where(n.positive(x), n.negate(x), x))
    return n.negate(n.log(n.add(1, n.exp(n.negate(x))))), small


@semantics_of(
    "aten.log_sigmoid_backward",
    examples=lambda draw: [call(draw(2, 3), (x := draw(2, 3)), torch.exp(-x.abs()))],
)
def log_sigmoid_backward(
    n: Numbers, grad: torch.Tensor, x: torch.Tensor, buffer: torch.Tensor
) -> torch.Tensor:
    """1 / (1 + exp(x)) by exp(-abs(x)), as the CPU's kernel does."""
    share = n.divide(buffer, n.add(1, buffer))
    return n.multiply(grad, n.where(n.positive(x), share, n.subtract(1, share)))


def _elu_gradients(draw: Draw) -> Iterable[Call]:
    return [
        call(draw(2, 3), 1.5, 2, 0.5, False, draw(2, 3)),
        call(draw(2, 3), 1, 1, 1, True, draw(2, 3)),
    ]


@semantics_of("aten.elu_backward", examples=_elu_gradients)
def elu_backward(
    n: Numbers,
    grad: torch.Tensor,
    alpha: Value,
    scale: Value,
    input_scale: Value,
    is_result: bool,
    x: torch.Tensor,
) -> torch.Tensor:
    """`x` is the result of elu if `is_result`, else its argument."""
    above = n.multiply(grad, scale)
    if is_result:
        slope = n.multiply(input_scale, n.add(x, n.multiply(alpha, scale)))
    else:
        slope = n.multiply(n.multiply(input_scale, alpha), n.exp(n.multiply(x, input_scale)))
        slope = n.multiply(slope, scale)
    return n.where(n.positive(x), above, n.multiply(grad, slope))


@semantics_of("aten.glu", examples=lambda draw: [call(draw(2, 4)), call(draw(4, 3), 0)])
def glu(n: Numbers, x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    left, gate = x.chunk(2, dim)
    return n.multiply(left, n.sigmoid(gate))


@semantics_of(
    "aten.glu_backward",
    examples=lambda draw: [call(draw(2, 2), draw(2, 4), -1), call(draw(2, 3), draw(4, 3), 0)],
)
def glu_backward(n: Numbers, grad: torch.Tensor, x: torch.Tensor, dim: int) -> torch.Tensor:
    left, gate = x.chunk(2, dim)
    share = n.sigmoid(gate)
    by_left = n.multiply(grad, share)
    by_gate = n.multiply(n.multiply(by_left, n.subtract(1, share)), left)
    return torch.cat((by_left, by_gate), dim)
