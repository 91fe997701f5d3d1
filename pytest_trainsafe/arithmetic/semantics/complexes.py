"""Complex tensors of numbers: each operator as operators on its real and imaginary part.

A complex128 tensor carries two numbers in each element.  Many models write rotary embeddings so:
`view_as_real(view_as_complex(x) * polar(ones, angles))`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from pytest_trainsafe.arithmetic.errors import MissingSemanticsError

#: Views of complex as real tensors, and of real as complex ones, which run as they are.
VIEWS = frozenset({"aten.view_as_complex", "aten.view_as_real"})

#: Operators that make complex tensors of real ones: always, or if an argument says so.
_MAKES = frozenset({"aten.complex", "aten.polar", "aten.view_as_complex"})
_MAY_MAKE = frozenset({"aten._to_copy", "aten.mul"})
FROM_REAL = _MAKES | _MAY_MAKE

#: How a result is stored, which changes no number.
_STORAGE = frozenset({"dtype", "layout", "device", "memory_format", "non_blocking"})


def on_complex(
    name: str, args: Sequence[Any], tensors: Sequence[torch.Tensor], kwargs: Mapping[str, Any]
) -> bool:
    """Whether an operator is given complex numbers, or makes them."""
    if name in _MAKES or any(each.is_complex() for each in tensors):
        return True
    if name not in _MAY_MAKE:
        return False
    dtype = kwargs.get("dtype")
    return any(isinstance(each, complex) for each in args) or (
        dtype is not None and dtype.is_complex
    )


def computed(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor:
    """What an operator returns on complex numbers, by operators on real ones.

    Raises MissingSemanticsError for an operator that is not listed here.
    """
    rule = _RULES.get(name.removesuffix("_"))
    to = kwargs.get("dtype")
    if rule is None or not kwargs.keys() <= _STORAGE or (to is not None and not to.is_complex):
        raise MissingSemanticsError(name, "complex numbers")
    result = rule(*args)
    if not name.endswith("_"):
        return result
    target: torch.Tensor = args[0]
    if not target.is_complex():
        raise MissingSemanticsError(name, "a complex and a real tensor")
    torch.view_as_real(target).copy_(torch.view_as_real(result.expand(target.shape)))
    return target


def _parts(x: Any) -> tuple[Any, Any]:
    """The real and the imaginary part of a tensor or number."""
    if not isinstance(x, torch.Tensor):
        return complex(x).real, complex(x).imag
    if not x.is_complex():
        return x, torch.zeros_like(x)
    real, imaginary = torch.view_as_real(x).unbind(-1)
    return real, imaginary


def _whole(real: torch.Tensor, imaginary: torch.Tensor) -> torch.Tensor:
    shape = torch.broadcast_shapes(real.shape, imaginary.shape)  # type: ignore[no-untyped-call]
    return torch.view_as_complex(torch.stack([real.expand(shape), imaginary.expand(shape)], -1))


def _each(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A function of one tensor that acts on both parts alike."""

    def on_parts(x: Any, *rest: Any) -> torch.Tensor:
        real, imaginary = _parts(x)
        return _whole(function(real, *rest), function(imaginary, *rest))

    return on_parts


def _add(x: Any, y: Any) -> torch.Tensor:
    (a, b), (c, d) = _parts(x), _parts(y)
    return _whole(a + c, b + d)


def _subtract(x: Any, y: Any) -> torch.Tensor:
    (a, b), (c, d) = _parts(x), _parts(y)
    return _whole(a - c, b - d)


def _product(multiply: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def product(x: Any, y: Any) -> torch.Tensor:
        (a, b), (c, d) = _parts(x), _parts(y)
        return _whole(multiply(a, c) - multiply(b, d), multiply(a, d) + multiply(b, c))

    return product


def _divide(x: Any, y: Any) -> torch.Tensor:
    (a, b), (c, d) = _parts(x), _parts(y)
    size = c * c + d * d
    return _whole((a * c + b * d) / size, (b * c - a * d) / size)


def _conjugate(x: torch.Tensor) -> torch.Tensor:
    real, imaginary = _parts(x)
    return _whole(real, -imaginary)


def _polar(size: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    return _whole(size * angle.cos(), size * angle.sin())


def _exp(x: torch.Tensor) -> torch.Tensor:
    real, imaginary = _parts(x)
    return _polar(real.exp(), imaginary)


def _abs(x: torch.Tensor) -> torch.Tensor:
    real, imaginary = _parts(x)
    size: torch.Tensor = (real * real + imaginary * imaginary).sqrt()
    return size


_RULES: dict[str, Callable[..., torch.Tensor]] = {
    "aten.add": _add,
    "aten.sub": _subtract,
    "aten.mul": _product(lambda x, y: x * y),
    "aten.mm": _product(torch.mm),
    "aten.bmm": _product(torch.bmm),
    "aten.div": _divide,
    "aten.neg": _each(torch.neg),
    "aten.sum": _each(torch.sum),
    "aten.mean": _each(torch.mean),
    "aten._conj": _conjugate,
    "aten.conj_physical": _conjugate,
    "aten.complex": _whole,
    "aten.polar": _polar,
    "aten.exp": _exp,
    "aten.abs": _abs,
    "aten._to_copy": _each(torch.clone),
    "aten.copy": lambda target, source, *rest: _whole(*_parts(source)),
}
