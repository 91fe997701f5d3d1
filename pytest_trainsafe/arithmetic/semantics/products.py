"""Products of matrices and vectors."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from pytest_trainsafe.arithmetic.numbers import Numbers, Value
from pytest_trainsafe.arithmetic.semantics.elementwise.pointwise import scaled
from pytest_trainsafe.arithmetic.table import Call, Draw, call, semantics_of


@semantics_of("aten.mm", examples=lambda draw: [call(draw(2, 3), draw(3, 4))])
def mm(n: Numbers, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return n.matmul(x, other)


@semantics_of("aten.bmm", examples=lambda draw: [call(draw(2, 2, 3), draw(2, 3, 2))])
def bmm(n: Numbers, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return n.matmul(x, other)


@semantics_of("aten.mv", examples=lambda draw: [call(draw(2, 3), draw(3))])
def mv(n: Numbers, x: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
    return n.matmul(x, vector[:, None])[:, 0]


@semantics_of("aten.dot", "aten.vdot", examples=lambda draw: [call(draw(3), draw(3))])
def dot(n: Numbers, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return n.sum(n.multiply(x, other))


def _sum(n: Numbers, x: torch.Tensor, product: torch.Tensor, beta: Value, alpha: Value) -> Value:
    """beta * x + alpha * product; x is not read if beta is zero, as torch documents."""
    product = n.lift(scaled(n, product, alpha))
    return product if beta == 0 else n.add(scaled(n, x, beta), product)


def _with_matrix(draw: Draw) -> Iterable[Call]:
    return [
        call(draw(4), draw(2, 3), draw(3, 4)),
        call(draw(2, 4), draw(2, 3), draw(3, 4), beta=0.5, alpha=-2),
        call(draw(2, 4), draw(2, 3), draw(3, 4), beta=0, alpha=1),
    ]


def _with_batches(draw: Draw) -> Iterable[Call]:
    return [
        call(draw(2, 2, 4), draw(2, 2, 3), draw(2, 3, 4)),
        call(draw(2, 2, 4), draw(2, 2, 3), draw(2, 3, 4), beta=0.5, alpha=-2),
        call(draw(2, 2, 4), draw(2, 2, 3), draw(2, 3, 4), beta=0, alpha=0.25),
    ]


@semantics_of("aten.addmm", examples=_with_matrix)
@semantics_of("aten.baddbmm", examples=_with_batches)
def addmm(
    n: Numbers,
    x: torch.Tensor,
    left: torch.Tensor,
    right: torch.Tensor,
    beta: Value = 1,
    alpha: Value = 1,
) -> Value:
    return _sum(n, x, n.matmul(left, right), beta, alpha)


def _with_vector(draw: Draw) -> Iterable[Call]:
    return [
        call(draw(2), draw(2, 3), draw(3)),
        call(draw(2), draw(2, 3), draw(3), beta=0.5, alpha=-2),
    ]


@semantics_of("aten.addmv", examples=_with_vector)
def addmv(
    n: Numbers,
    x: torch.Tensor,
    matrix: torch.Tensor,
    vector: torch.Tensor,
    beta: Value = 1,
    alpha: Value = 1,
) -> Value:
    return _sum(n, x, mv(n, matrix, vector), beta, alpha)
