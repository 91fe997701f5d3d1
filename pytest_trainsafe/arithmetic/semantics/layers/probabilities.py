"""Softmax, log-sum-exp and losses.

softmax(x) is exp(x) / sum(exp(x)) without a shift by the maximum, which cancels; a program that
shifts gets the same numbers, because exp(x - m) = exp(x) / exp(m) is known of a maximum.
The logarithms shift by the maximum, as programs that split the vocabulary over ranks do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from pytest_trainsafe.arithmetic.numbers import Dims, Numbers
from pytest_trainsafe.arithmetic.semantics.examples import two
from pytest_trainsafe.arithmetic.table import Call, Draw, Examples, call, semantics_of

MEAN, SUM = 1, 2


@semantics_of(
    "aten._softmax",
    examples=lambda draw: [call(draw(2, 3), 1, False), call(draw(2, 3), 0, False)],
)
def softmax(n: Numbers, x: torch.Tensor, dim: int, half_to_float: bool = False) -> torch.Tensor:
    weights = n.exp(n.bounded(x, dim))
    return n.divide(weights, n.sum(weights, dim, True))


def _masked_rows(draw: Draw) -> Iterable[Call]:
    masked = draw(2, 3)
    masked[1] = -math.inf
    return [call(draw(2, 3), -1), call(masked, -1)]


@semantics_of("aten._safe_softmax", examples=_masked_rows)
def safe_softmax(
    n: Numbers, x: torch.Tensor, dim: int, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """softmax, and zeros where all elements are masked by -inf."""
    nothing = x.isneginf().all(dim, keepdim=True)
    return n.where(nothing, 0, softmax(n, x, dim))


def _gradients(draw: Draw) -> Iterable[Call]:
    return [call(draw(2, 3), draw(2, 3), 1, torch.float64)]


@semantics_of("aten._softmax_backward_data", examples=_gradients)
def softmax_backward(
    n: Numbers, grad: torch.Tensor, result: torch.Tensor, dim: int, dtype: torch.dtype
) -> torch.Tensor:
    inner = n.sum(n.multiply(grad, result), dim, True)
    return n.multiply(result, n.subtract(grad, inner))


@semantics_of(
    "aten._log_softmax",
    examples=lambda draw: [call(draw(2, 3), 1, False), call(draw(2, 3), 0, False)],
)
def log_softmax(n: Numbers, x: torch.Tensor, dim: int, half_to_float: bool = False) -> torch.Tensor:
    shifted = n.subtract(x, n.extreme(x, dim, True))
    return n.subtract(shifted, n.log(n.sum(n.exp(shifted), dim, True)))


@semantics_of("aten._log_softmax_backward_data", examples=_gradients)
def log_softmax_backward(
    n: Numbers, grad: torch.Tensor, result: torch.Tensor, dim: int, dtype: torch.dtype
) -> torch.Tensor:
    return n.subtract(grad, n.multiply(n.exp(result), n.sum(grad, dim, True)))


@semantics_of(
    "aten.logsumexp",
    examples=lambda draw: [call(draw(2, 3), [1]), call(draw(2, 3, 2), [0, 2], True)],
)
def logsumexp(n: Numbers, x: torch.Tensor, dim: Dims, keepdim: bool = False) -> torch.Tensor:
    largest = n.extreme(x, dim, True)
    total = n.log(n.sum(n.exp(n.subtract(x, largest)), dim, keepdim))
    return n.add(largest.reshape(total.shape), total)


@semantics_of("aten.logaddexp", examples=two)
def logaddexp(n: Numbers, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    largest = n.shift(n.where(n.decide("ge", torch.ge, x, other), x, other))
    parts = (n.exp(n.subtract(each, largest)) for each in (x, other))
    return n.add(largest, n.log(n.add(*parts)))


def _classes(draw: Draw) -> Iterable[Call]:
    target = torch.tensor([0, 2, -100, 1])
    return [
        call(draw(4, 3), target, weight, reduction, -100)
        for reduction in (0, MEAN, SUM)
        for weight in (None, draw.positive(3))
    ]


def _planes(draw: Draw) -> Iterable[Call]:
    target = torch.tensor([[[0, 2], [1, -100]], [[2, 1], [0, 0]]])
    return [
        call(draw(2, 3, 2, 2), target, weight, reduction, -100)
        for reduction in (0, MEAN, SUM)
        for weight in (None, draw.positive(3))
    ]


def _class_weights(
    n: Numbers, target: torch.Tensor, weight: torch.Tensor | None, ignored: int, like: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The weight of each row, zero for ignored ones, and its class, which is 0 for ignored ones."""
    counted = target != ignored
    classes = torch.where(counted, target, 0)
    return n.lift(counted) if weight is None else n.where(counted, weight[classes], 0), classes


def _class_dim(x: torch.Tensor) -> int:
    """The dimension of the classes: the second of rows and planes, the only one of a vector."""
    return min(1, x.ndim - 1)


@semantics_of("aten.nll_loss_forward", examples=_classes)
@semantics_of("aten.nll_loss2d_forward", examples=_planes)
def nll_loss(
    n: Numbers,
    x: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    reduction: int,
    ignore_index: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    weights, classes = _class_weights(n, target, weight, ignore_index, x)
    dim = _class_dim(x)
    chosen = x.gather(dim, classes.unsqueeze(dim)).squeeze(dim)
    losses = n.negate(n.multiply(weights, chosen))
    total = n.sum(weights) if reduction else n.lift(0)
    if not reduction:
        return losses, total
    loss = n.sum(losses)
    return (n.divide(loss, total) if reduction == MEAN else loss), total


def _gradients_of(examples: Examples, forward: str) -> Examples:
    """Examples of the backward of a loss by classes, from those of its operator `forward`."""

    def made(draw: Draw) -> Iterable[Call]:
        for example in examples(draw):
            x, target, weight, reduction, ignored = example.args
            grad = draw() if reduction else draw(*target.shape)
            total = getattr(torch.ops.aten, forward)(*example.args)[1]
            yield call(grad, x, target, weight, reduction, ignored, total)

    return made


@semantics_of("aten.nll_loss_backward", examples=_gradients_of(_classes, "nll_loss_forward"))
@semantics_of("aten.nll_loss2d_backward", examples=_gradients_of(_planes, "nll_loss2d_forward"))
def nll_loss_backward(
    n: Numbers,
    grad: torch.Tensor,
    x: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: torch.Tensor,
) -> torch.Tensor:
    weights, classes = _class_weights(n, target, weight, ignore_index, x)
    slope = n.negate(n.multiply(weights, grad))
    if reduction == MEAN:
        slope = n.divide(slope, total_weight)
    dim = _class_dim(x)
    return torch.zeros_like(x).scatter(dim, classes.unsqueeze(dim), slope.unsqueeze(dim))


def reduced(n: Numbers, losses: torch.Tensor, reduction: int) -> torch.Tensor:
    if reduction == MEAN:
        return n.mean(losses)
    return n.sum(losses) if reduction == SUM else losses


def _pairs(draw: Draw) -> Iterable[Call]:
    return [call(draw(2, 3), draw(2, 3), reduction) for reduction in (0, MEAN, SUM)]


@semantics_of("aten.mse_loss", examples=_pairs)
def mse_loss(
    n: Numbers, x: torch.Tensor, target: torch.Tensor, reduction: int = MEAN
) -> torch.Tensor:
    return reduced(n, n.square(n.subtract(x, target)), reduction)


def _pair_gradients(draw: Draw) -> Iterable[Call]:
    return [
        call(draw(2, 3) if reduction == 0 else draw(), draw(2, 3), draw(2, 3), reduction)
        for reduction in (0, MEAN, SUM)
    ]


@semantics_of("aten.mse_loss_backward", examples=_pair_gradients)
def mse_loss_backward(
    n: Numbers, grad: torch.Tensor, x: torch.Tensor, target: torch.Tensor, reduction: int
) -> torch.Tensor:
    slope = n.multiply(n.multiply(2, n.subtract(x, target)), grad)
    return n.divide(slope, x.numel()) if reduction == MEAN else slope


def _logits(draw: Draw) -> Iterable[Call]:
    return [
        call(draw(2, 3), draw.positive(2, 3) / 8),
        call(draw(2, 3), draw.positive(2, 3) / 8, draw.positive(3), draw.positive(3), SUM),
    ]


@semantics_of("aten.binary_cross_entropy_with_logits", examples=_logits)
def binary_cross_entropy_with_logits(
    n: Numbers,
    x: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    pos_weight: torch.Tensor | None = None,
    reduction: int = MEAN,
) -> torch.Tensor:
    """(1 - y) * x + (1 + (w - 1) * y) * log(1 + exp(-x)), where w weights the positive class."""
    scale = n.lift(1)
    if pos_weight is not None:
        scale = n.add(1, n.multiply(n.subtract(pos_weight, 1), target))
    soft = n.log(n.add(1, n.exp(n.negate(x))))
    losses = n.add(n.multiply(n.subtract(1, target), x), n.multiply(scale, soft))
    return reduced(n, losses if weight is None else n.multiply(losses, weight), reduction)
