"""The tensors in a module's output, each with its key path.

Called by the recorder's hooks; also rebuilds an output with some tensors replaced.
`record/hooks/not_recorded.py` reports containers that are not known here.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from pytest_trainsafe.compat.autograd import is_transformed


def tensors_in(value: object, name: str = "output") -> Iterator[tuple[str, torch.Tensor]]:
    """Yields `(key path, tensor)`: "output", "output.0", "output.logits", at any depth.

    Enters tuples, lists, mappings and dataclasses only, and skips tensors without readable values
    (`has_values`).  Key paths are unique: for the keys 1 and "1", the later one is "output.1#1".
    """
    taken: dict[str, int] = {}
    for key_path, leaf in leaves(value, name):
        if isinstance(leaf, torch.Tensor) and has_values(leaf):
            count = taken[key_path] = taken.get(key_path, -1) + 1
            yield (f"{key_path}#{count}" if count else key_path), leaf


def leaves(
    value: object, name: str = "output", around: tuple[int, ...] = ()
) -> Iterator[tuple[str, object]]:
    """Yields `(key path, leaf)` for everything in a structure that is not a known container.

    A container inside itself is not entered again; `around` are the ids of enclosing containers.
    """
    if isinstance(value, torch.Tensor) or not _is_container(value):
        yield name, value
    elif id(value) not in around:
        for key, item in _items(value):
            yield from leaves(item, f"{name}.{key}", (*around, id(value)))


def has_values(tensor: torch.Tensor) -> bool:
    """Whether a tensor's values can be read as numbers.

    It is not meta, quantized or nested, nor a tensor inside a transform of torch.func, such as one
    example of many inside `vmap`.
    """
    if tensor.is_meta or tensor.is_nested or tensor.is_quantized:
        return False
    return not is_transformed(tensor)


def replace_tensors(
    value: Any,
    replace: Callable[[str, torch.Tensor], torch.Tensor],
    name: str = "output",
    around: tuple[int, ...] = (),
) -> Any:
    """The same structure with every tensor replaced by `replace(key path, tensor)`.

    Containers are copied if something in them changes; `value` itself is never changed.
    Mappings that are not dicts are returned unchanged, as is a container inside itself
    (`around` are the ids of enclosing containers).
    """
    if isinstance(value, torch.Tensor):
        return replace(name, value)
    if id(value) in around:
        return value
    around = (*around, id(value))
    old = list(_items(value))
    new = [replace_tensors(item, replace, f"{name}.{key}", around) for key, item in old]
    if all(a is b for (_, a), b in zip(old, new, strict=True)):
        return value
    if isinstance(value, tuple):
        named = hasattr(value, "_fields")
        return type(value)(*new) if named else type(value)(new)
    if isinstance(value, list | dict):  # copied, since a subclass may have any __init__
        copied: Any = copy.copy(value)
        keys = range(len(new)) if isinstance(value, list) else (key for key, _ in old)
        for key, item in zip(keys, new, strict=True):
            copied[key] = item
        return copied
    if dataclasses.is_dataclass(value):
        changed = copy.copy(value)
        for (key, _), item in zip(old, new, strict=True):
            object.__setattr__(changed, str(key), item)  # works for frozen dataclasses too
        return changed
    return value


def arguments(args: Any, kwargs: Any) -> dict[object, Any]:
    """The arguments of a module by their keys in key paths: positions, then keywords."""
    return {**dict(enumerate(args)), **kwargs}


def with_aliases(args: Any, kwargs: Any, aliases: Mapping[int, torch.Tensor]) -> tuple[Any, Any]:
    """The arguments of a module with tensors replaced; `aliases` has them by the tensors' ids."""

    def replaced(_: str, tensor: torch.Tensor) -> torch.Tensor:
        return aliases.get(id(tensor), tensor)

    return replace_tensors(args, replaced), replace_tensors(kwargs, replaced)


def _is_container(value: object) -> bool:
    known = isinstance(value, Mapping | tuple | list)
    return known or (dataclasses.is_dataclass(value) and not isinstance(value, type))


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
