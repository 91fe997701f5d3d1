"""Finds values in a module's output that are not recorded.

Called by the recorder's hooks, which add each value to the trace once, for the report.  An object
of a user's class may refer to anything (caches, the model itself), so the search does not look for
tensors deep inside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Any

import torch
from torch import nn

from pytest_trainsafe.compat.autograd import is_transformed
from pytest_trainsafe.record.hooks.outputs import has_values, leaves

#: Types that cannot hold tensors, and are the most frequent.
_PLAIN = (str, bytes, int, float, complex, bool, type(None), torch.dtype, torch.device, torch.Size)


def not_recorded(value: object) -> Iterator[str]:
    """Yields descriptions of the values in a module's output that are not recorded.

    For example "output.cache is a Cache, with tensors in keys, values".  Strings, numbers, None
    and objects without tensors have no description.
    """
    for key_path, leaf in leaves(value):
        what = _what(leaf)
        if what:
            yield f"{key_path} is {what}"


def _what(leaf: object) -> str:
    if isinstance(leaf, torch.Tensor):
        return "" if has_values(leaf) else _kind_of(leaf)
    if isinstance(leaf, (*_PLAIN, type, nn.Module)):
        return ""
    name = type(leaf).__name__
    if isinstance(leaf, Set):
        return f"a {name} of tensors" if any(map(_holds_tensors, leaf)) else ""
    if isinstance(leaf, Iterator):
        return f"a {name}, which cannot be read without consuming it"
    if type(leaf).__module__ == "numpy" and hasattr(leaf, "dtype"):
        return f"a numpy {name}"
    found = [name for name, item in _attributes(leaf) if _holds_tensors(item)]
    return f"a {name}, with tensors in {', '.join(found)}" if found else ""


def _kind_of(tensor: torch.Tensor) -> str:
    if tensor.is_meta:
        return "a tensor on the meta device, without values"
    if is_transformed(tensor):
        return "a tensor inside a transform of torch.func, such as vmap"
    return "a nested tensor" if tensor.is_nested else "a quantized tensor"


def _holds_tensors(value: object) -> bool:
    """Whether a value is a tensor or contains one.

    Parameters do not count, because they are recorded with the model.
    """
    return any(
        isinstance(leaf, torch.Tensor) and not isinstance(leaf, nn.Parameter)
        for _, leaf in leaves(value)
    )


def _attributes(value: Any) -> Iterator[tuple[str, object]]:
    """The attributes that an object stores; calls none of its properties."""
    yield from getattr(value, "__dict__", {}).items()
    for cls in type(value).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                yield name, getattr(value, name)
