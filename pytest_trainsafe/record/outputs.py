"""The tensors in what a module returns, each with the name of its place.

Called by the recorder's hooks; also rebuilds an output with some tensors replaced.
"""

from __future__ import annotations

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
    """The same structure with every tensor replaced by `replace(place, tensor)`."""
    if isinstance(value, torch.Tensor):
        return replace(name, value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(
            *(replace_tensors(item, replace, f"{name}.{key}") for key, item in _items(value))
        )
    if isinstance(value, (tuple, list)):
        return type(value)(
            replace_tensors(item, replace, f"{name}.{key}") for key, item in _items(value)
        )
    if isinstance(value, dict):
        items = {k: replace_tensors(v, replace, f"{name}.{k}") for k, v in value.items()}
        return items if type(value) is dict else type(value)(**items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.replace(
            value,
            **{key: replace_tensors(v, replace, f"{name}.{key}") for key, v in _items(value)},
        )
    return value


def _items(value: object) -> Iterator[tuple[object, object]]:
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        yield from zip(value._fields, value, strict=True)
    elif isinstance(value, (tuple, list)):
        yield from enumerate(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            if field.init:
                yield field.name, getattr(value, field.name)
