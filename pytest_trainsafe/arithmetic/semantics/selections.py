"""Selections by the order of numbers: medians, running maxima, buckets, draws by chances."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from pytest_trainsafe.arithmetic.numbers import Numbers, Value
from pytest_trainsafe.arithmetic.semantics.elementwise.decided import maximum, minimum
from pytest_trainsafe.arithmetic.semantics.examples import two
from pytest_trainsafe.arithmetic.table import Call, Draw, call, semantics_of

Chosen = tuple[torch.Tensor, torch.Tensor]


def _middles(draw: Draw) -> Iterable[Call]:
    return [call(draw(3, 5)), call(draw(3, 5), 1), call(draw(4, 3), 0, True)]


@semantics_of("aten.median", examples=_middles)
def median(
    n: Numbers, x: torch.Tensor, dim: int | None = None, keepdim: bool = False
) -> torch.Tensor | Chosen:
    """Of an even number of elements the lower one, as torch chooses it."""
    if dim is None:
        flat = x.reshape(-1)
        return _at(n, "median", flat, 0, False, lambda each: each.median(0).indices)[0]
    return _at(n, "median", x, dim, keepdim, lambda each: each.median(dim, keepdim).indices)


@semantics_of(
    "aten.kthvalue", examples=lambda draw: [call(draw(3, 5), 2), call(draw(4, 3), 3, 0, True)]
)
def kthvalue(n: Numbers, x: torch.Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Chosen:
    return _at(n, "kthvalue", x, dim, keepdim, lambda each: each.kthvalue(k, dim, keepdim).indices)


def _at(
    n: Numbers,
    name: str,
    x: torch.Tensor,
    dim: int,
    keepdim: bool,
    chosen: Callable[[torch.Tensor], torch.Tensor],
) -> Chosen:
    """One element along `dim`, at the indices that real numbers choose."""
    places: torch.Tensor = n.decide(name, chosen, x)
    if x.ndim == 0:
        return x.clone(), places
    whole = places if keepdim else places.unsqueeze(dim)
    found = x.gather(dim, whole)
    return found if keepdim else found.squeeze(dim), places


def _running(name: str) -> None:
    real = getattr(torch, name)

    @semantics_of(f"aten.{name}", examples=lambda draw: [call(draw(2, 5), 1), call(draw(4, 2), 0)])
    def running(n: Numbers, x: torch.Tensor, dim: int) -> Chosen:
        places: torch.Tensor = n.decide(name, lambda each: real(each, dim).indices, x)
        return x.gather(dim, places), places


for _name in ("cummax", "cummin"):
    _running(_name)


@semantics_of("aten.aminmax", examples=lambda draw: [call(draw(2, 5)), call(draw(2, 5), dim=1)])
def aminmax(n: Numbers, x: torch.Tensor, dim: int | None = None, keepdim: bool = False) -> Chosen:
    return n.extreme(x, dim, keepdim, least=True), n.extreme(x, dim, keepdim)


@semantics_of("aten.fmax", examples=two)
def fmax(n: Numbers, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """The larger one, and the number where one is a NaN."""
    return n.where(x.isnan(), other, n.where(other.isnan(), x, maximum(n, x, other)))


@semantics_of("aten.fmin", examples=two)
def fmin(n: Numbers, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return n.where(x.isnan(), other, n.where(other.isnan(), x, minimum(n, x, other)))


@semantics_of(
    "aten.nan_to_num", examples=lambda draw: [call(draw(2, 3)), call(draw(4), 0.5, 2.0, -2.0)]
)
def nan_to_num(
    n: Numbers,
    x: torch.Tensor,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
) -> torch.Tensor:
    """Replaces NaNs; infinities by the largest numbers of the dtype, if no others are given."""
    limits = torch.finfo(x.dtype)
    for mask, value, default in (
        (x.isposinf(), posinf, limits.max),
        (x.isneginf(), neginf, limits.min),
        (x.isnan(), nan, 0.0),
    ):
        if mask.any():
            x = n.where(mask, default if value is None else value, x)
    return x


@semantics_of(
    "aten.multinomial",
    examples=lambda draw: [call(draw.positive(3, 6), 2), call(draw.positive(5), 3, True)],
)
def multinomial(n: Numbers, x: torch.Tensor, *options: Any, **keywords: Any) -> Any:
    """The run on real numbers draws; the generator advances alike on all numbers."""
    generator = keywords.get("generator") or torch.default_generator
    before = generator.get_state()

    def drawn(chances: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = torch.ops.aten.multinomial(chances, *options, **keywords)
        return found

    places = n.decide("multinomial", drawn, x)
    generator.set_state(before)
    drawn(torch.ones_like(x))
    return places


@semantics_of(
    "aten.searchsorted",
    examples=lambda draw: [
        call(draw(5).sort().values, draw(2, 3)),
        call(draw(5).sort().values, 0.5),
    ],
)
def searchsorted(n: Numbers, bounds: torch.Tensor, x: Value, **options: Any) -> Any:
    def places(sorted_: torch.Tensor, each: torch.Tensor) -> torch.Tensor:
        return torch.searchsorted(sorted_, each, **options)

    return n.decide("searchsorted", places, bounds, x)


@semantics_of("aten.bucketize", examples=lambda draw: [call(draw(2, 3), draw(5).sort().values)])
def bucketize(n: Numbers, x: Value, bounds: torch.Tensor, **options: Any) -> Any:
    return n.decide(
        "bucketize", lambda each, limits: torch.bucketize(each, limits, **options), x, bounds
    )


@semantics_of("aten.count_nonzero", examples=lambda draw: [call(draw(2, 3) * draw.mask(2, 3), [1])])
def count_nonzero(n: Numbers, x: torch.Tensor, dim: Any = None) -> Any:
    return n.decide("count_nonzero", lambda each: torch.count_nonzero(each, dim), x)
