"""Nearest-neighbour upsampling, which copies elements, and its gradient, which adds them up."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from pytest_trainsafe.arithmetic.numbers import Numbers
from pytest_trainsafe.arithmetic.table import Call, Draw, call, semantics_of

Sizes = Sequence[int]

_ROUNDINGS = ("upsample_nearest", "_upsample_nearest_exact")


def _nearest(kind: str, dims: int) -> None:
    name = f"{kind}{dims}d"

    @semantics_of(f"aten.{name}", examples=_enlarged(dims))
    def upsample(n: Numbers, x: torch.Tensor, size: Sizes, *scales: Any) -> torch.Tensor:
        source = _source(name, x.shape[-dims:], size, scales)
        return x.flatten(-dims)[..., source].reshape(*x.shape[:-dims], *size)

    @semantics_of(f"aten.{name}_backward", examples=_gradients(dims))
    def backward(
        n: Numbers, grad: torch.Tensor, size: Sizes, given: Sizes, *scales: Any
    ) -> torch.Tensor:
        source = _source(name, given[-dims:], size, scales)
        flat = grad.new_zeros(*given[:-dims], math.prod(given[-dims:]))
        added = n.linear(lambda x, y: x.index_add(-1, source, y), flat, grad.flatten(-dims))
        return added.view(list(given))


def _source(name: str, given: Sizes, size: Sizes, scales: Sequence[Any]) -> torch.Tensor:
    """For each element of the larger plane, the place of its value in the flat given one."""
    places = torch.arange(math.prod(given), dtype=torch.float64).view(1, 1, *given)
    enlarge: Callable[..., torch.Tensor] = getattr(torch.ops.aten, name)
    return enlarge(places, list(size), *scales).flatten().to(torch.int64)


def _enlarged(dims: int) -> Callable[[Draw], Iterable[Call]]:
    def examples(draw: Draw) -> Iterable[Call]:
        given = [3, 2, 2][:dims]
        yield call(draw(1, 2, *given), [2 * each for each in given])
        yield call(draw(2, 1, *given), [each + 2 for each in given], *[1.5] * dims)

    return examples


def _gradients(dims: int) -> Callable[[Draw], Iterable[Call]]:
    def examples(draw: Draw) -> Iterable[Call]:
        for example in _enlarged(dims)(draw):
            x, size, *scales = example.args
            yield call(draw(*x.shape[:2], *size), size, list(x.shape), *scales)

    return examples


for _kind in _ROUNDINGS:
    for _dims in (1, 2, 3):
        _nearest(_kind, _dims)
