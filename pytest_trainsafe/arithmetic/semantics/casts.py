"""Casts, copies, and tensors of Python numbers.

A cast to a dtype of at least 16 bits is the identity: the exact run shows what a recipe computes
apart from rounding.  A cast to FP8 is an uninterpreted function of its argument: with the identity
x * s / s would be x for any scale, and a wrong scale unseen.  A cast to integers is a decision.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

from pytest_trainsafe.arithmetic.errors import NarrowCastError
from pytest_trainsafe.arithmetic.numbers import Numbers
from pytest_trainsafe.arithmetic.semantics.examples import none
from pytest_trainsafe.arithmetic.table import Call, Draw, call, semantics_of

#: Floats whose cast is the identity.
WIDE = frozenset({torch.float64, torch.float32, torch.bfloat16, torch.float16})


def cast(n: Numbers, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`x` as a tensor of `dtype`, where float dtypes are carried by float64."""
    if not x.is_floating_point():
        plain = x.to(dtype)
        return n.lift(x) if plain.is_floating_point() else plain
    if dtype in WIDE:
        return x.clone()
    if dtype is torch.bool:
        mask: torch.Tensor = n.decide("ne", torch.ne, x, 0)
        return mask
    if not dtype.is_floating_point and not dtype.is_complex:
        whole: torch.Tensor = n.decide(f"to {dtype}", lambda each: each.to(dtype), x)
        return whole
    if "float8" not in str(dtype):
        raise NarrowCastError(
            f"a cast to {dtype} has no semantics; casts to {sorted(map(str, WIDE))} are "
            "identities, and those to FP8 uninterpreted functions"
        )
    return n.function(f"to {dtype}", lambda each: each.to(dtype).to(torch.float64), x)


def _casts(draw: Draw) -> Iterable[Call]:
    return [
        call(draw(2, 3), dtype=torch.float32),
        call(draw(2, 3)),
        call(draw(2, 3), dtype=torch.int64),
        call(draw(2, 3), dtype=torch.bool),
        call(draw(2, 3), dtype=torch.float8_e4m3fn),
        call(draw.integers(4, 3), dtype=torch.float64),
        call(draw.mask(3), dtype=torch.int64),
    ]


@semantics_of("aten._to_copy", examples=_casts, factory=True)
def to_copy(
    n: Numbers, x: torch.Tensor, dtype: torch.dtype | None = None, **options: Any
) -> torch.Tensor:
    return cast(n, x, x.dtype if dtype is None else dtype)


def _copies(draw: Draw) -> Iterable[Call]:
    return [call(draw(2, 3), draw(3)), call(draw(2, 3), draw.integers(4, 2, 3))]


@semantics_of("aten.copy", examples=_copies)
def copy(
    n: Numbers, x: torch.Tensor, source: torch.Tensor, non_blocking: bool = False
) -> torch.Tensor:
    return cast(n, source, x.dtype).expand(x.shape)


@semantics_of("aten.lift_fresh", examples=none, factory=True)
def lift_fresh(n: Numbers, x: torch.Tensor) -> torch.Tensor:
    """A tensor of Python numbers, such as torch.tensor(1e-3): the numbers that they mean."""
    if not x.is_floating_point():
        return x
    meant = [n.lift(_written(each, x.dtype)) for each in x.reshape(-1).tolist()]
    return torch.stack(meant).reshape(x.shape) if meant else x.to(torch.float64)


def _written(value: float, dtype: torch.dtype) -> float:
    """The shortest decimal that a narrow dtype rounds to `value`: what the program wrote."""
    for digits in range(1, 10) if dtype is not torch.float64 and math.isfinite(value) else ():
        short = float(f"{value:.{digits}g}")
        if torch.tensor(short, dtype=dtype).item() == value:
            return short
    return value
