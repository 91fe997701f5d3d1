"""Sums, means, variances, norms, maxima and sorting."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from pytest_trainsafe.arithmetic.numbers import Dims, Number, Numbers, every
from pytest_trainsafe.arithmetic.semantics.elementwise.pointwise import pow as power
from pytest_trainsafe.arithmetic.semantics.examples import one
from pytest_trainsafe.arithmetic.table import Call, Draw, call, semantics_of


def _over(draw: Draw) -> Iterable[Call]:
    return [
        *one(draw),
        call(draw(2, 3, 2), [1]),
        call(draw(2, 3, 2), [0, -1], True),
    ]


@semantics_of("aten.sum", examples=_over)
def sum(n: Numbers, x: torch.Tensor, dim: Dims = None, keepdim: bool = False) -> torch.Tensor:
    return n.sum(x, dim, keepdim)


@semantics_of("aten.mean", examples=_over)
def mean(n: Numbers, x: torch.Tensor, dim: Dims = None, keepdim: bool = False) -> torch.Tensor:
    return n.mean(x, dim, keepdim)


def _along(draw: Draw) -> Iterable[Call]:
    return [call(draw(2, 3), 0), call(draw(2, 3), -1)]


@semantics_of("aten.cumsum", examples=_along)
def cumsum(n: Numbers, x: torch.Tensor, dim: int) -> torch.Tensor:
    return n.linear(lambda each: each.cumsum(dim), x)


@semantics_of("aten.cumprod", examples=_along)
def cumprod(n: Numbers, x: torch.Tensor, dim: int) -> torch.Tensor:
    products: list[torch.Tensor] = []
    for part in x.unbind(dim):
        products.append(n.multiply(products[-1], part) if products else part)
    return torch.stack(products, dim)


@semantics_of("aten.trace", examples=lambda draw: [call(draw(3, 3))])
def trace(n: Numbers, x: torch.Tensor) -> torch.Tensor:
    return n.sum(x.diagonal())


def _products(draw: Draw) -> Iterable[Call]:
    return [call(draw(5)), call(draw(2, 3), 1), call(draw(2, 3), 0, True)]


@semantics_of("aten.prod", examples=_products)
def prod(
    n: Numbers, x: torch.Tensor, dim: int | None = None, keepdim: bool = False
) -> torch.Tensor:
    if dim is None:
        x, dim = x.reshape(-1), 0
    result = n.lift(1)
    for part in x.unbind(dim):
        result = n.multiply(result, part)
    return result.unsqueeze(dim) if keepdim else result


def _variances(draw: Draw) -> Iterable[Call]:
    return [
        call(draw(2, 3)),
        call(draw(2, 3, 2), [1], correction=0),
        call(draw(2, 3, 2), [0, 2], correction=1, keepdim=True),
    ]


def _deviations(
    n: Numbers, x: torch.Tensor, dim: Dims, unbiased: Any, correction: Number | None, keepdim: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Variance and mean; torch's older overloads say `unbiased` for a correction of 1."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    if correction is None:
        correction = 1 if unbiased is None else int(unbiased)
    middle = n.mean(x, dim, True)
    squares = n.sum(n.square(n.subtract(x, middle)), dim, keepdim)
    count = 1
    for each in every(x, dim):
        count *= x.shape[each]
    middle = middle if keepdim else middle.reshape(squares.shape)
    return n.divide(squares, count - correction), middle


@semantics_of("aten.var", examples=_variances)
def var(
    n: Numbers,
    x: torch.Tensor,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    correction: Number | None = None,
) -> torch.Tensor:
    return _deviations(n, x, dim, unbiased, correction, keepdim)[0]


@semantics_of("aten.std", examples=_variances)
def std(
    n: Numbers,
    x: torch.Tensor,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    correction: Number | None = None,
) -> torch.Tensor:
    return n.sqrt(_deviations(n, x, dim, unbiased, correction, keepdim)[0])


@semantics_of("aten.var_mean", examples=_variances)
def var_mean(
    n: Numbers,
    x: torch.Tensor,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    correction: Number | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    return _deviations(n, x, dim, unbiased, correction, keepdim)


def _norms(draw: Draw) -> Iterable[Call]:
    return [
        call(draw(2, 3)),
        call(draw(2, 3), 1),
        call(draw(2, 3), float("inf")),
        call(draw(2, 3, 2), 2, [1], True),
        call(draw(2, 3), 3),
    ]


@semantics_of("aten.linalg_vector_norm", "aten.norm", examples=_norms)
def vector_norm(
    n: Numbers,
    x: torch.Tensor,
    ord: Number | None = 2,
    dim: Dims = None,
    keepdim: bool = False,
) -> torch.Tensor:
    if ord is None or ord == 2:
        return n.sqrt(n.sum(n.square(x), dim, keepdim))
    size = n.where(n.positive(x), x, n.negate(x))
    if ord == float("inf"):
        return n.extreme(size, dim, keepdim)
    total = n.sum(power(n, size, ord), dim, keepdim)
    return total if ord == 1 else power(n, total, 1 / ord)


@semantics_of("aten.amax", examples=_over)
def amax(n: Numbers, x: torch.Tensor, dim: Dims = None, keepdim: bool = False) -> torch.Tensor:
    return n.extreme(x, dim, keepdim)


@semantics_of("aten.amin", examples=_over)
def amin(n: Numbers, x: torch.Tensor, dim: Dims = None, keepdim: bool = False) -> torch.Tensor:
    return n.extreme(x, dim, keepdim, least=True)


def _extremes(draw: Draw) -> Iterable[Call]:
    return [*one(draw), call(draw(2, 3), 1), call(draw(2, 3), 0, True), call(draw(3), draw(3))]


def _extreme(n: Numbers, x: torch.Tensor, dim: Any, keepdim: bool, least: bool) -> Any:
    if dim is None:
        return n.extreme(x, None, least=least)
    if isinstance(dim, torch.Tensor):
        first = n.decide("le", torch.le, x, dim) if least else n.decide("ge", torch.ge, x, dim)
        return n.where(first, x, dim) if least else n.shift(n.where(first, x, dim))
    places = n.places(x, dim, least)
    values = x.gather(dim, places)
    if not least:
        values = n.shift(values)
    return (values, places) if keepdim else (values.squeeze(dim), places.squeeze(dim))


@semantics_of("aten.max", examples=_extremes)
def max(n: Numbers, x: torch.Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    return _extreme(n, x, dim, keepdim, least=False)


@semantics_of("aten.min", examples=_extremes)
def min(n: Numbers, x: torch.Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    return _extreme(n, x, dim, keepdim, least=True)


def _places(draw: Draw) -> Iterable[Call]:
    return [call(draw(2, 3)), call(draw(2, 3), 1), call(draw(2, 3), 0, True)]


@semantics_of("aten.argmax", examples=_places)
def argmax(n: Numbers, x: torch.Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    return n.decide("argmax", lambda each: each.argmax(dim, keepdim), x)


@semantics_of("aten.argmin", examples=_places)
def argmin(n: Numbers, x: torch.Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    return n.decide("argmin", lambda each: each.argmin(dim, keepdim), x)


@semantics_of(
    "aten.topk", examples=lambda draw: [call(draw(2, 5), 2), call(draw(5, 2), 3, 0, False)]
)
def topk(
    n: Numbers,
    x: torch.Tensor,
    k: int,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    places = n.decide("topk", lambda each: each.topk(k, dim, largest, sorted).indices, x)
    return x.gather(dim, places), places


@semantics_of("aten.sort", examples=lambda draw: [call(draw(2, 5)), call(draw(5, 2), 0, True)])
def sort(
    n: Numbers,
    x: torch.Tensor,
    dim: int = -1,
    descending: bool = False,
    stable: bool | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    places = n.decide(
        "sort", lambda each: each.sort(stable=True, dim=dim, descending=descending).indices, x
    )
    return x.gather(dim, places), places


def _truths(draw: Draw) -> Iterable[Call]:
    return [call(draw(2, 3) * draw.mask(2, 3)), call(draw(2, 3) * draw.mask(2, 3), 1)]


@semantics_of("aten.any", examples=_truths)
def any(n: Numbers, x: torch.Tensor, *dims: Any, **options: Any) -> Any:
    return n.decide("any", lambda each: torch.any(each, *dims, **options), x)


@semantics_of("aten.all", examples=_truths)
def all(n: Numbers, x: torch.Tensor, *dims: Any, **options: Any) -> Any:
    return n.decide("all", lambda each: torch.all(each, *dims, **options), x)
