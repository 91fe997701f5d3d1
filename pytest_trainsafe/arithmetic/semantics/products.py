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


@semantics_of(
    "aten.addr",
    examples=lambda draw: [
        call(draw(2, 3), draw(2), draw(3)),
        call(draw(2, 3), draw(2), draw(3), beta=0.5, alpha=-2),
    ],
)
def addr(
    n: Numbers,
    x: torch.Tensor,
    left: torch.Tensor,
    right: torch.Tensor,
    beta: Value = 1,
    alpha: Value = 1,
) -> Value:
    return _sum(n, x, n.multiply(left[:, None], right), beta, alpha)


def _by_norms(draw: Draw) -> Iterable[Call]:
    return [
        call(draw(2, 3, 2), draw.positive(2, 1, 1), 0),
        call(draw(4, 3), draw.positive(1, 3), 1),
    ]


@semantics_of("aten._weight_norm_interface", examples=_by_norms)
def weight_norm(
    n: Numbers, v: torch.Tensor, g: torch.Tensor, dim: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """v * g / norm(v), with one norm for each index of `dim`."""
    over = [each for each in range(v.ndim) if each != dim % v.ndim]
    norms = n.sqrt(n.sum(n.square(v), over, True))
    return n.multiply(v, n.divide(g, norms)), norms


def _norm_gradients(draw: Draw) -> Iterable[Call]:
    for example in _by_norms(draw):
        v, g, dim = example.args
        norms = torch.ops.aten._weight_norm_interface(v, g, dim)[1]
        yield call(draw(*v.shape), v, g, norms, dim)


@semantics_of("aten._weight_norm_interface_backward", examples=_norm_gradients)
def weight_norm_backward(
    n: Numbers, grad: torch.Tensor, v: torch.Tensor, g: torch.Tensor, norms: torch.Tensor, dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    over = [each for each in range(v.ndim) if each != dim % v.ndim]
    inner = n.sum(n.multiply(grad, v), over, True)
    along = n.divide(n.multiply(v, inner), n.square(norms))
    by_v = n.multiply(n.divide(g, norms), n.subtract(grad, along))
    return by_v, n.divide(inner, norms)
