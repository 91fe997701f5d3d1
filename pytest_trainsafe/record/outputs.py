"""The tensors in what a module returns, each with the name of its place.

Called by the recorder's hooks; also rebuilds an output with some tensors replaced.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch


def tensors_in(value: object, name: str = "output") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield `(place, tensor)`: "output", "output.0", "output.logits", nested as deep as it goes.

    Looks into tuples, lists, mappings and dataclasses; anything else holds no tensors.
    """
    if isinstance(value, torch.Tensor):
        yield name, value
    else:
        for key, item in _items(value):
            yield from tensors_in(item, f"{name}.{key}")


def replace_tensors(
    value: Any, replace: Callable[[str, torch.Tensor], torch.Tensor], name: str = "output"
) -> Any:
    """The same structure with every tensor replaced by `replace(place, tensor)`.

    What holds no tensors is returned as it is; the rest is copied, and the value given here is
    not changed.  Mappings that are no dict are returned as they are.
    """
    if isinstance(value, torch.Tensor):
        return replace(name, value)
    old = list(_items(value))
    new = [replace_tensors(item, replace, f"{name}.{key}") for key, item in old]
    if all(a is b for (_, a), b in zip(old, new, strict=True)):
        return value
    if isinstance(value, tuple):
        named = hasattr(value, "_fields")
        return type(value)(*new) if named else type(value)(new)
    if isinstance(value, list | dict):  # copied, for a subclass may have any __init__
        copied: Any = copy.copy(value)
        keys = range(len(new)) if isinstance(value, list) else (key for key, _ in old)
        for key, item in zip(keys, new, strict=True):
            copied[key] = item
        return copied
    if dataclasses.is_dataclass(value):
        changed = copy.copy(value)
        for (key, _), item in zip(old, new, strict=True):
            object.__setattr__(changed, str(key), item)  # also where it is frozen
        return changed
    return value


def _items(value: object) -> Iterator[tuple[object, object]]:
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        yield from zip(value._fields, value, strict=True)
    elif isinstance(value, tuple | list):
        yield from enumerate(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            if hasattr(value, field.name):
                yield field.name, getattr(value, field.name)
