"""Losses by elements, and their derivatives."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from pytest_trainsafe.arithmetic.numbers import Numbers, Value
from pytest_trainsafe.arithmetic.semantics.elementwise.decided import abs as size
from pytest_trainsafe.arithmetic.semantics.elementwise.decided import sign
from pytest_trainsafe.arithmetic.semantics.layers.probabilities import (
    MEAN,
    SUM,
    reduced,
)
from pytest_trainsafe.arithmetic.table import Call, Draw, call, semantics_of

_REDUCTIONS = (0, MEAN, SUM)
Maybe = torch.Tensor | None


def _near_and_far(draw: Draw) -> Iterable[Call]:
    return [
        call(draw(2, 5), draw(2, 5), reduction, bend)
        for reduction in _REDUCTIONS
        for bend in (1.0, 2.5)
    ]


def _by_distance(draw: Draw) -> Iterable[Call]:
    for example in _near_and_far(draw):
        yield call(draw() if example.args[2] else draw(2, 5), *example.args)


def _inside(n: Numbers, distance: torch.Tensor, bend: Value) -> torch.Tensor:
    mask: torch.Tensor = n.decide("lt", torch.lt, distance, bend)
    return mask


@semantics_of("aten.huber_loss", examples=_near_and_far)
def huber_loss(
    n: Numbers, x: torch.Tensor, target: torch.Tensor, reduction: int = MEAN, delta: Value = 1.0
) -> torch.Tensor:
    """d ** 2 / 2 below delta, and delta * (d - delta / 2) from there, where d is the distance."""
    distance = size(n, n.subtract(x, target))
    near = n.multiply(0.5, n.square(distance))
    far = n.multiply(delta, n.subtract(distance, n.multiply(0.5, delta)))
    return reduced(n, n.where(_inside(n, distance, delta), near, far), reduction)


@semantics_of("aten.huber_loss_backward", examples=_by_distance)
def huber_loss_backward(
    n: Numbers,
    grad: torch.Tensor,
    x: torch.Tensor,
    target: torch.Tensor,
    reduction: int,
    delta: Value,
) -> torch.Tensor:
    apart = n.subtract(x, target)
    far = n.multiply(delta, sign(n, apart))
    slope = n.where(_inside(n, size(n, apart), delta), apart, far)
    return _spread(n, n.multiply(grad, slope), reduction)


@semantics_of("aten.smooth_l1_loss", examples=_near_and_far)
def smooth_l1_loss(
    n: Numbers, x: torch.Tensor, target: torch.Tensor, reduction: int = MEAN, beta: Value = 1.0
) -> torch.Tensor:
    """d ** 2 / (2 * beta) below beta, and d - beta / 2 from there, where d is the distance."""
    distance = size(n, n.subtract(x, target))
    if beta == 0:
        return reduced(n, distance, reduction)
    near = n.divide(n.multiply(0.5, n.square(distance)), beta)
    far = n.subtract(distance, n.multiply(0.5, beta))
    return reduced(n, n.where(_inside(n, distance, beta), near, far), reduction)


@semantics_of("aten.smooth_l1_loss_backward", examples=_by_distance)
def smooth_l1_loss_backward(
    n: Numbers,
    grad: torch.Tensor,
    x: torch.Tensor,
    target: torch.Tensor,
    reduction: int,
    beta: Value,
) -> torch.Tensor:
    apart = n.subtract(x, target)
    slope = sign(n, apart)
    if beta != 0:
        slope = n.where(_inside(n, size(n, apart), beta), n.divide(apart, beta), slope)
    return _spread(n, n.multiply(grad, slope), reduction)


def _spread(n: Numbers, slope: torch.Tensor, reduction: int) -> torch.Tensor:
    return n.divide(slope, slope.numel()) if reduction == MEAN else slope


def _chances(draw: Draw) -> Iterable[Call]:
    return [
        call(draw.positive(2, 3) / 8, draw.positive(2, 3) / 8, weight, reduction)
        for reduction in _REDUCTIONS
        for weight in (None, draw.positive(3))
    ]


@semantics_of("aten.binary_cross_entropy", examples=_chances)
def binary_cross_entropy(
    n: Numbers,
    x: torch.Tensor,
    target: torch.Tensor,
    weight: Maybe = None,
    reduction: int = MEAN,
) -> torch.Tensor:
    """-(y * log(x) + (1 - y) * log(1 - x)), with logarithms of at least -100, as torch has them."""
    parts = []
    for chance, share in ((x, target), (n.subtract(1, x), n.subtract(1, target))):
        low = n.decide("lt", torch.lt, chance, math.exp(-100))
        parts.append(n.multiply(share, n.where(low, -100, n.log(n.where(low, 1, chance)))))
    losses = n.negate(n.add(*parts))
    return reduced(n, losses if weight is None else n.multiply(losses, weight), reduction)


def _chance_gradients(draw: Draw) -> Iterable[Call]:
    for example in _chances(draw):
        yield call(draw() if example.args[3] else draw(2, 3), *example.args)


@semantics_of("aten.binary_cross_entropy_backward", examples=_chance_gradients)
def binary_cross_entropy_backward(
    n: Numbers,
    grad: torch.Tensor,
    x: torch.Tensor,
    target: torch.Tensor,
    weight: Maybe = None,
    reduction: int = MEAN,
) -> torch.Tensor:
    """(x - y) / ((1 - x) * x), whose divisor is at least 1e-12."""
    divisor = n.multiply(n.subtract(1, x), x)
    divisor = n.where(n.decide("lt", torch.lt, divisor, 1e-12), 1e-12, divisor)
    slope = n.multiply(grad, n.divide(n.subtract(x, target), divisor))
    return _spread(n, slope if weight is None else n.multiply(slope, weight), reduction)


def _margins(draw: Draw) -> Iterable[Call]:
    return [
        call(draw(2, 3), 1.0 - 2.0 * draw.mask(2, 3).double(), reduction)
        for reduction in _REDUCTIONS
    ]


@semantics_of("aten.soft_margin_loss", examples=_margins)
def soft_margin_loss(
    n: Numbers, x: torch.Tensor, target: torch.Tensor, reduction: int = MEAN
) -> torch.Tensor:
    return reduced(n, n.log(n.add(1, n.exp(n.negate(n.multiply(target, x))))), reduction)


@semantics_of(
    "aten.soft_margin_loss_backward",
    examples=lambda draw: [
        call(draw() if each.args[2] else draw(2, 3), *each.args) for each in _margins(draw)
    ],
)
def soft_margin_loss_backward(
    n: Numbers, grad: torch.Tensor, x: torch.Tensor, target: torch.Tensor, reduction: int
) -> torch.Tensor:
    small = n.exp(n.negate(n.multiply(target, x)))
    slope = n.negate(n.divide(n.multiply(target, small), n.add(1, small)))
    return _spread(n, n.multiply(grad, slope), reduction)
