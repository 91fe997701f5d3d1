"""New tensors: constants, and memory that nobody has written.

A float tensor of a narrower dtype becomes a float64 tensor, since the cast to the dtype that a
recipe trains in is the identity.  Uninitialised memory is random, different in each run, so a
program that reads it differs from itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from pytest_trainsafe.arithmetic.numbers import Number, Numbers
from pytest_trainsafe.arithmetic.table import Call, Draw, call, semantics_of


def made(
    n: Numbers, shape: Sequence[int], value: Number, dtype: torch.dtype | None, **options: Any
) -> torch.Tensor:
    """A tensor full of one value, as a number if its dtype is a float."""
    if dtype is None:
        dtype = torch.get_default_dtype() if isinstance(value, float) else None
    plain = torch.full(shape, value, dtype=dtype, device=options.get("device"))
    if not plain.is_floating_point():
        return plain
    return torch.empty_like(plain, dtype=torch.float64).copy_(n.lift(value))


def _default(dtype: torch.dtype | None) -> torch.dtype:
    return torch.get_default_dtype() if dtype is None else dtype


def _shape(draw: Draw) -> Iterable[Call]:
    return [call([2, 3]), call([2], dtype=torch.float32), call([2], dtype=torch.int64)]


@semantics_of("aten.zeros", examples=_shape, factory=True)
def zeros(
    n: Numbers, size: Sequence[int], dtype: torch.dtype | None = None, **options: Any
) -> torch.Tensor:
    return made(n, size, 0, _default(dtype), **options)


@semantics_of("aten.ones", examples=_shape, factory=True)
def ones(
    n: Numbers, size: Sequence[int], dtype: torch.dtype | None = None, **options: Any
) -> torch.Tensor:
    return made(n, size, 1, _default(dtype), **options)


@semantics_of(
    "aten.full",
    examples=lambda draw: [call([2, 3], 0.25), call([2], 3), call([2], 1, dtype=torch.float32)],
    factory=True,
)
def full(
    n: Numbers,
    size: Sequence[int],
    value: Number,
    dtype: torch.dtype | None = None,
    **options: Any,
) -> torch.Tensor:
    return made(n, size, value, dtype, **options)


@semantics_of("aten.scalar_tensor", examples=lambda draw: [call(0.25), call(3)], factory=True)
def scalar_tensor(
    n: Numbers, value: Number, dtype: torch.dtype | None = None, **options: Any
) -> torch.Tensor:
    return made(n, [], value, _default(dtype), **options)


def _like(draw: Draw) -> Iterable[Call]:
    return [call(draw(2, 3)), call(draw(2, 3), dtype=torch.int64)]


def _kept(x: torch.Tensor, dtype: torch.dtype | None) -> torch.dtype:
    return x.dtype if dtype is None else dtype


@semantics_of("aten.ones_like", examples=_like, factory=True)
def ones_like(
    n: Numbers, x: torch.Tensor, dtype: torch.dtype | None = None, **options: Any
) -> torch.Tensor:
    return made(n, x.shape, 1, _kept(x, dtype), **options)


@semantics_of(
    "aten.full_like",
    examples=lambda draw: [call(draw(2, 3), 0.25), call(draw(2, 3), 2, dtype=torch.int64)],
    factory=True,
)
def full_like(
    n: Numbers, x: torch.Tensor, value: Number, dtype: torch.dtype | None = None, **options: Any
) -> torch.Tensor:
    return made(n, x.shape, value, _kept(x, dtype), **options)


def _new(draw: Draw) -> Iterable[Call]:
    return [call(draw(2), [2, 3]), call(draw(2), [3], dtype=torch.int64)]


@semantics_of("aten.new_zeros", examples=_new, factory=True)
def new_zeros(
    n: Numbers,
    x: torch.Tensor,
    size: Sequence[int],
    dtype: torch.dtype | None = None,
    **options: Any,
) -> torch.Tensor:
    return made(n, size, 0, _kept(x, dtype), **options)


@semantics_of("aten.new_ones", examples=_new, factory=True)
def new_ones(
    n: Numbers,
    x: torch.Tensor,
    size: Sequence[int],
    dtype: torch.dtype | None = None,
    **options: Any,
) -> torch.Tensor:
    return made(n, size, 1, _kept(x, dtype), **options)


@semantics_of("aten.new_full", examples=lambda draw: [call(draw(2), [3], 0.25)], factory=True)
def new_full(
    n: Numbers,
    x: torch.Tensor,
    size: Sequence[int],
    value: Number,
    dtype: torch.dtype | None = None,
    **options: Any,
) -> torch.Tensor:
    return made(n, size, value, _kept(x, dtype), **options)


@semantics_of("aten.fill", examples=lambda draw: [call(draw(2, 3), 0.25), call(draw(2, 3), draw())])
def fill(n: Numbers, x: torch.Tensor, value: Any) -> torch.Tensor:
    return torch.empty_like(x).copy_(n.lift(value))


@semantics_of(
    "aten.arange",
    examples=lambda draw: [call(4), call(1, 7, 2), call(0.5, 2), call(3, dtype=torch.float64)],
    factory=True,
)
def arange(n: Numbers, *bounds: Number, **options: Any) -> torch.Tensor:
    plain = torch.arange(*bounds, **options)
    if not plain.is_floating_point():
        return plain
    start = 0 if len(bounds) == 1 else bounds[0]
    step = bounds[2] if len(bounds) == 3 else 1
    return n.add(start, n.multiply(step, torch.arange(plain.numel())))


@semantics_of("aten.linspace", examples=lambda draw: [call(0.5, 2, 4), call(1, 2, 1)], factory=True)
def linspace(n: Numbers, start: Number, end: Number, steps: int, **options: Any) -> torch.Tensor:
    step = n.divide(n.subtract(end, start), max(steps - 1, 1))
    return n.add(start, n.multiply(step, torch.arange(steps)))


@semantics_of("aten.eye", examples=lambda draw: [call(3), call(2, 3)], factory=True)
def eye(n: Numbers, *size: int, dtype: torch.dtype | None = None, **options: Any) -> torch.Tensor:
    plain = torch.eye(*size, dtype=torch.int64)
    return n.lift(plain) if _default(dtype).is_floating_point else plain.to(dtype)


def _unwritten(n: Numbers, empty: torch.Tensor) -> torch.Tensor:
    if not empty.is_floating_point():
        return empty
    result = empty if empty.dtype is torch.float64 else empty.to(torch.float64)
    return result.copy_(n.unwritten(empty.shape))


def _uninitialised(name: str, *examples: Call) -> None:
    make = getattr(torch.ops.aten, name)

    @semantics_of(f"aten.{name}", examples=lambda draw: examples, factory=True, random=True)
    def empty(n: Numbers, *args: Any, **options: Any) -> torch.Tensor:
        return _unwritten(n, make(*args, **options))


_x = torch.zeros(2, 3, dtype=torch.float64)
_uninitialised("empty", call([2, 3]), call([2], dtype=torch.int64))
_uninitialised("empty_strided", call([2, 3], [1, 2]))
_uninitialised("empty_like", call(_x))
_uninitialised("new_empty", call(_x, [3]))
_uninitialised("new_empty_strided", call(_x, [3], [1]))
