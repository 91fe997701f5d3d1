"""Keeps functions with jumps from turning noise into flips.

A quantiser, a sign or a comparison turns a difference of 1e-16 into a whole step where its input
lies on a jump.  Data that are exact in a narrow dtype lie on jumps often: halves, zeros, powers of
two.  A correct candidate computes the same exact values, so nothing flips there; noise would move
half of them across, and the allowance of everything behind would be that large.  So in a Run with
noise in float64, functions with jumps see their inputs rounded to fewer digits, which undoes the
noise and keeps the exact values.  A value that is not on a jump is on the same side as before.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch

from pytest_trainsafe.compat.dispatch_modes import TorchDispatchMode
from pytest_trainsafe.compat.operators import schema_of

#: How many of the 53 digits of float64 are cut off: 2**-40 is 4000 times the noise.
CUT = 12

#: ATen operators that jump in the values of their arguments.
_STEPS = frozenset(
    {
        *("round", "floor", "ceil", "trunc", "sign", "sgn", "heaviside", "floor_divide", "signbit"),
        *("gt", "ge", "lt", "le", "eq", "ne", "bucketize", "searchsorted", "argmax", "argmin"),
        *(
            "fake_quantize_per_tensor_affine_cachemask",
            "fake_quantize_per_channel_affine_cachemask",
        ),
        *("quantize_per_tensor", "argsort", "frexp"),
    }
)

#: Operators that choose by value and return the values that they chose, with their indices.
_CHOICES = frozenset({"topk", "sort", "max", "min", "kthvalue", "median", "mode"})


class StableJumps(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Rounds the float64 inputs of operators with jumps to `53 - CUT` digits."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        match _jump(func):
            case "":
                return func(*args, **kwargs)
            case "cast":
                if not _to_integer(kwargs.get("dtype")):
                    return func(*args, **kwargs)
                return func(*map(_cut, args), **kwargs)
            case "choice":
                return self._chosen(func, args, kwargs)
            case "in place":
                if _is_wide(args[0]):
                    args[0].copy_(_cut(args[0]))
                return func(args[0], *map(_cut, args[1:]), **kwargs)
        return func(*map(_cut, args), **{key: _cut(each) for key, each in kwargs.items()})

    def _chosen(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        result = func(*map(_cut, args), **kwargs)
        given, (values, indices) = args[0], result
        if not _is_wide(given) or values.shape != indices.shape or not given.ndim:
            return result
        dim = _dim(func, args, kwargs)
        keeps = values.ndim == given.ndim
        index = indices if keeps else indices.unsqueeze(dim)
        taken = given.gather(dim, index)
        return type(result)((taken if keeps else taken.squeeze(dim), indices))


@functools.cache  # nearly every operator has no jump
def _jump(func: Any) -> Literal["", "cast", "choice", "in place", "step"]:
    """How an operator jumps in the values of its arguments; "" if it does not."""
    name = schema_of(func).name.partition("::")[2]
    if name == "_to_copy":
        return "cast"
    if name in _STEPS:
        return "step"
    if name.removesuffix("_") in _STEPS:
        return "in place"
    return "choice" if name in _CHOICES and len(schema_of(func).returns) == 2 else ""


def _dim(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    for place, argument in enumerate(schema_of(func).arguments):
        if argument.name == "dim":
            default = argument.default_value
            found = args[place] if place < len(args) else kwargs.get("dim", default)
            return int(-1 if found is None else found)
    return -1


def _is_wide(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype is torch.float64


def _to_integer(dtype: Any) -> bool:
    return isinstance(dtype, torch.dtype) and not (dtype.is_floating_point or dtype.is_complex)


def _cut(value: Any) -> Any:
    """A float64 tensor rounded to `53 - CUT` digits (Veltkamp's splitting); others unchanged."""
    if not _is_wide(value):
        return value
    scaled = value * (2.0**CUT + 1)
    high = scaled - (scaled - value)
    return torch.where(high.isfinite(), high, value)
