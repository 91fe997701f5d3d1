"""Turns the state of a sampler, a loader or a generator into plain data and tensors, and back.

Values that JSON stores without loss are kept. Every other value becomes a dict with one key, its
kind:

    {"dict": [[key, value], ...]}   {"list": [...]}   {"tuple": [...]}
    {"int": "-0x1f"}                an integer that does not fit into 64 bits
    {"float": "nan"}                a float that JSON has no number for
    {"tensor": name}, {"array": name}, {"bytes": name}, {"scalar": name}

where `name` is the name of a tensor in the same file. Decoding never executes anything.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from pytest_trainsafe.core.usage import shown
from pytest_trainsafe.errors import ArgumentTypeError, TrainsafeError

#: The most levels of nested containers in a state.
MAX_DEPTH = 64

_INT64 = 2**63

#: The longest integer of a state, in hexadecimal digits: those of NumPy's generators have 32.
_MAX_DIGITS = 4096


class TreeError(TrainsafeError):
    """Raised for plain data from a file that is not an encoded state."""


def encode(value: object, path: str, tensors: dict[str, torch.Tensor], depth: int = 0) -> Any:
    """Converts a state, or a value in it, to plain data.

    Adds the value's tensors to `tensors`, under names that begin with `path`. A value is a number,
    text, bytes, None, a tensor, a NumPy array or scalar of numbers, or a dict, list or tuple of
    values. Raises ArgumentTypeError, which names the place of the fault, for any other type, and
    for containers that are nested more than MAX_DEPTH levels deep.
    """
    if depth > MAX_DEPTH:
        raise ArgumentTypeError(
            f"{path} is nested more than {MAX_DEPTH} levels deep, which ReplayCheckpoint cannot "
            "save. Let state_dict() return fewer levels of dicts, lists and tuples"
        )
    kind = type(value)
    if value is None or kind in (bool, str):
        return value
    if isinstance(value, int) and kind is int:
        return value if -_INT64 <= value < _INT64 else {"int": hex(value)}
    if isinstance(value, float) and kind is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, dict):
        pairs = []
        for number, (key, each) in enumerate(value.items()):
            inner = f"{path}.{key}" if type(key) in (str, int) else f"{path}.{number}"
            pairs.append(
                [
                    encode(key, f"{inner} (a key)", tensors, depth + 1),
                    encode(each, inner, tensors, depth + 1),
                ]
            )
        return {"dict": pairs}
    if isinstance(value, list | tuple):
        inside = [encode(v, f"{path}.{i}", tensors, depth + 1) for i, v in enumerate(value)]
        return {"list" if isinstance(value, list) else "tuple": inside}
    if isinstance(value, torch.Tensor):
        return _stored("tensor", path, value.detach().cpu().contiguous().clone(), tensors)
    if isinstance(value, bytes):
        raw = torch.frombuffer(bytearray(value), dtype=torch.uint8) if value else torch.empty(0)
        return _stored("bytes", path, raw.to(torch.uint8), tensors)
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "buif":
        what = "array" if isinstance(value, np.ndarray) else "scalar"
        return _stored(what, path, torch.from_numpy(np.array(value)), tensors)
    raise ArgumentTypeError(
        f"{path} is {shown(value)}, which ReplayCheckpoint cannot save. Let state_dict() return "
        "only numbers, texts, bytes, None, tensors, NumPy arrays of numbers, and dicts, lists and "
        "tuples of these"
    )


def decode(node: Any, tensors: Mapping[str, torch.Tensor], depth: int = 0) -> Any:
    """The value that `encode` was given. Raises TreeError for data that `encode` never returns."""
    if depth > MAX_DEPTH:
        raise TreeError("a state is nested too deeply")
    if node is None or isinstance(node, bool | int | float | str):
        return node
    if not isinstance(node, dict) or len(node) != 1:
        raise TreeError(f"a state has the malformed entry {shown(node)}")
    [(kind, inside)] = node.items()
    if kind in ("list", "tuple") and isinstance(inside, list):
        values = [decode(each, tensors, depth + 1) for each in inside]
        return values if kind == "list" else tuple(values)
    if kind == "dict" and isinstance(inside, list):
        return dict(_pair(each, tensors, depth + 1) for each in inside)
    if isinstance(inside, str):
        if kind == "int" and len(inside) <= _MAX_DIGITS:
            try:
                return int(inside, 16)
            except ValueError:
                pass
        if kind == "float" and inside in ("nan", "inf", "-inf"):
            return float(inside)
        if inside in tensors:
            return _value(kind, tensors[inside])
    raise TreeError(f"a state has the malformed entry {shown(node)}")


def _pair(pair: Any, tensors: Mapping[str, torch.Tensor], depth: int) -> tuple[Any, Any]:
    if not isinstance(pair, list) or len(pair) != 2:
        raise TreeError(f"a state has the malformed entry {shown(pair)}")
    key = decode(pair[0], tensors, depth)
    try:
        hash(key)
    except TypeError:
        raise TreeError(f"a state has the key {shown(key)}, which is not hashable") from None
    return key, decode(pair[1], tensors, depth)


def _stored(
    kind: str, path: str, tensor: torch.Tensor, tensors: dict[str, torch.Tensor]
) -> dict[str, str]:
    name = path
    while name in tensors:
        name += "'"
    if tensor.layout is not torch.strided or tensor.is_complex() or tensor.is_quantized:
        raise ArgumentTypeError(
            f"{path} is a sparse, complex or quantised tensor, which ReplayCheckpoint cannot "
            "save. Let state_dict() return a dense tensor of real numbers instead"
        )
    tensors[name] = tensor
    return {kind: name}


def _value(kind: str, tensor: torch.Tensor) -> Any:
    if kind == "tensor":
        return tensor
    if kind == "bytes" and tensor.dtype is torch.uint8:
        return tensor.numpy().tobytes()
    if kind in ("array", "scalar") and tensor.dtype is not torch.bfloat16:
        array = tensor.numpy()
        return array if kind == "array" else array.reshape(-1)[0]
    raise TreeError(
        f"a state has an entry of kind {shown(kind)} with a tensor of {tensor.dtype}, which "
        "ReplayCheckpoint.save does not write"
    )
