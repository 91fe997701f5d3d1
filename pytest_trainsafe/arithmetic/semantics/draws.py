"""Random draws: the generator's own numbers, entered as data.

The draw advances the generator as in an ordinary run, so runs with one seed draw alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from pytest_trainsafe.arithmetic.numbers import Number, Numbers
from pytest_trainsafe.arithmetic.table import Call, Draw, call, semantics_of


def _drawing(name: str, *options: int) -> None:
    @semantics_of(f"aten.{name}", examples=lambda draw: [call(draw(2, 3), *options)])
    def fill(n: Numbers, x: torch.Tensor, *args: Any, **keywords: Any) -> torch.Tensor:
        drawn = torch.empty_like(x)
        getattr(drawn, name + "_")(*args, **keywords)
        return n.enter(drawn)


for _name in ("uniform", "exponential", "log_normal"):
    _drawing(_name)
_drawing("random", 0, 10)


def _normals(draw: Draw) -> Iterable[Call]:
    return [call(torch.zeros(2, 3, dtype=torch.float64))]


@semantics_of("aten.normal_functional", "aten.normal_", examples=_normals)
def normal(
    n: Numbers, x: torch.Tensor, mean: Number = 0, std: Number = 1, generator: Any = None
) -> torch.Tensor:
    drawn = torch.empty_like(x).normal_(mean, std, generator=generator)
    return x.copy_(n.enter(drawn))


def _making(name: str, example: Call) -> None:
    make = getattr(torch.ops.aten, name)

    @semantics_of(f"aten.{name}", examples=lambda draw: [example], factory=True)
    def drawn(n: Numbers, *args: Any, **options: Any) -> torch.Tensor:
        result: torch.Tensor = make(*args, **options)
        return n.enter(result) if result.is_floating_point() else result


_x = torch.zeros(2, 3, dtype=torch.float64)
_y = torch.zeros(4, 5, dtype=torch.float64)
_making("rand", call([2, 3], dtype=torch.float64))
_making("randn", call([2, 3], dtype=torch.float64))
_making("rand_like", call(_x))
_making("randn_like", call(_x))
_making("randint_like", call(_x, 5))
_making("randint", call(5, [2, 3]))


@semantics_of("aten.bernoulli", examples=lambda draw: [call(_y, 0.25)])
def bernoulli(n: Numbers, x: torch.Tensor, p: Any = None, generator: Any = None) -> torch.Tensor:
    """Zeros and ones, drawn with probabilities of the run on real numbers."""
    if p is None or isinstance(p, torch.Tensor):
        chances = x if p is None else p
        drawn = torch.rand(x.shape, dtype=torch.float64, generator=generator)
        return n.lift(n.decide("bernoulli", lambda each: drawn < each, chances))
    mask = torch.empty_like(x).bernoulli_(p, generator=generator)
    return n.enter(mask)


@semantics_of("aten.bernoulli_", examples=lambda draw: [call(draw(2, 3))])
def bernoulli_in_place(
    n: Numbers, x: torch.Tensor, p: Any = 0.5, generator: Any = None
) -> torch.Tensor:
    """The probability is one half where none is given, unlike that of `bernoulli`."""
    return x.copy_(bernoulli(n, x, p, generator))


@semantics_of("aten.native_dropout", examples=lambda draw: [call(draw(2, 3), 0.5, True)])
def dropout(
    n: Numbers, x: torch.Tensor, p: float, train: bool | None
) -> tuple[torch.Tensor, torch.Tensor]:
    if train is False or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    mask = torch.empty_like(x).bernoulli_(1 - p) != 0
    scale = n.inverse(n.subtract(1, p)) if p < 1 else n.lift(0)
    return n.multiply(n.where(mask, x, 0), scale), mask


@semantics_of(
    "aten.native_dropout_backward",
    examples=lambda draw: [call(draw(2, 3), draw.mask(2, 3), 2.0)],
)
def dropout_backward(
    n: Numbers, grad: torch.Tensor, mask: torch.Tensor, scale: Number
) -> torch.Tensor:
    return n.multiply(n.where(mask, grad, 0), scale)
