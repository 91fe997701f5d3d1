"""Encodes the values that pass between the test process and its ranks as msgpack bytes.

Allowed are None, bool, int, float, str, bytes, list, tuple, dict, `torch.Tensor`, numpy arrays,
and msgspec Structs (which arrive as dicts).  Tensors and arrays are sent as safetensors bytes, so
every bit is preserved; nothing is ever unpickled.  torch and numpy are imported only to encode or
decode a tensor or an array.
"""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from pytest_trainsafe.core.untrusted import MALFORMED
from pytest_trainsafe.errors import TrainsafeError

_TENSOR, _ARRAY, _TUPLE, _BIG_INT, _SCALAR, _PAIRS = 1, 2, 3, 4, 5, 6
_ALLOWED = (
    "None, bool, int, float, str, bytes, list, tuple, dict, torch.Tensor, numpy.ndarray "
    "and msgspec.Struct"
)


class NotDataError(TrainsafeError, TypeError):
    """A value that cannot be sent to another process."""


def encode(value: Any, what: str = "value") -> bytes:
    """Returns bytes from which `decode` restores an equal value.

    `what` names the value in the message of the NotDataError that is raised if the value, or a
    value inside it, has a type that is not allowed.
    """
    return msgspec.msgpack.encode(_plain(value, what))


class MalformedDataError(TrainsafeError, ValueError):
    """Bytes that `encode` did not produce.

    The message says only what is wrong with them; the code that reports it adds the file.
    """


def decode(data: bytes | memoryview) -> Any:
    """The value that `encode` turned into these bytes; tensors are on the CPU, without gradients.

    Raises MalformedDataError for bytes that `encode` did not produce.
    """
    try:
        return _decode(data)
    # The bytes may be anything: a number of 10**5 digits, unhashable keys, a safetensors file
    # without a tensor; and safetensors raises an error class of its own.
    except (*MALFORMED, ValueError, TypeError, LookupError, MemoryError) as error:
        raise MalformedDataError(f"{type(error).__name__}: {error}"[:500]) from None


def _decode(data: bytes | memoryview) -> Any:
    return msgspec.msgpack.decode(data, ext_hook=_unpack)


def _plain(value: Any, what: str) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, _loaded("numpy", "generic")):  # before float: numpy.float64 is a float
        return msgspec.msgpack.Ext(_SCALAR, _array_bytes(value, what))
    if isinstance(value, int):
        if -(2**63) <= value < 2**64:
            return int(value)
        return msgspec.msgpack.Ext(_BIG_INT, str(int(value)).encode())
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return _encodable(str(value), what)
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    if isinstance(value, list):
        return [_plain(item, f"{what}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, tuple):
        items = [_plain(item, f"{what}[{i}]") for i, item in enumerate(value)]
        return msgspec.msgpack.Ext(_TUPLE, msgspec.msgpack.encode(items))
    if isinstance(value, dict):
        pairs = [
            (_plain(key, f"a key of {what}"), _plain(item, f"{what}[{key!r}]"))
            for key, item in value.items()
        ]
        if any(isinstance(key, msgspec.msgpack.Ext) for key, _ in pairs):
            return msgspec.msgpack.Ext(_PAIRS, msgspec.msgpack.encode(pairs))
        return dict(pairs)
    if isinstance(value, msgspec.Struct):
        return _plain(msgspec.to_builtins(value), what)
    if isinstance(value, _loaded("torch", "Tensor")):
        return msgspec.msgpack.Ext(_TENSOR, _tensor_bytes(value, what))
    if isinstance(value, _loaded("numpy", "ndarray")):
        return msgspec.msgpack.Ext(_ARRAY, _array_bytes(value, what))
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    raise NotDataError(
        f"{what} is a {kind}, which cannot be sent to another process. Allowed are {_ALLOWED}. "
        "Pass the values from which the object is made, and let the program make it on each rank."
    )


def _encodable(text: str, what: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise NotDataError(
            f"{what} is {text[:200]!r}, which UTF-8 cannot encode ({error.reason}). A path with a "
            "name that is not UTF-8 cannot be sent to another process as text; pass it as bytes."
        ) from None
    return text


def _loaded(module: str, name: str) -> tuple[type, ...]:
    """A tuple of the class, for isinstance; () if its module, and so the class, is not imported."""
    found = getattr(sys.modules.get(module), name, None)
    return (found,) if found is not None else ()


def _tensor_bytes(tensor: Any, what: str) -> bytes:
    import torch
    from safetensors.torch import save

    if hasattr(tensor, "full_tensor"):
        raise NotDataError(
            f"{what} is a DTensor, which holds only one rank's part of a tensor. "
            "Pass its `.full_tensor()` or `.to_local()` instead."
        )
    try:
        # save() rejects views and strides; contiguous() copies only if needed.
        plain = tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        return bytes(save({"t": plain.contiguous()}))
    except (KeyError, ValueError, RuntimeError, NotImplementedError) as error:
        raise NotDataError(
            f"{what} is a {tensor.layout} tensor of {tensor.dtype} on {tensor.device}, "
            f"which safetensors cannot hold: {error}"
        ) from error


def _array_bytes(array: Any, what: str) -> bytes:
    import numpy
    from safetensors.numpy import save

    whole = numpy.array(array, order="C", copy=True)
    if whole.dtype.kind not in "biuf":
        raise NotDataError(
            f"{what} is a numpy array of dtype {whole.dtype}; "
            "allowed are booleans, integers and floating point numbers."
        )
    # safetensors stores little-endian bytes
    return bytes(save({"t": whole.astype(whole.dtype.newbyteorder("="), copy=False)}))


def _unpack(code: int, data: memoryview) -> Any:
    if code == _TUPLE:
        return tuple(_decode(data))
    if code == _PAIRS:
        return dict(_decode(data))
    if code == _BIG_INT:
        return int(bytes(data))
    if code in (_TENSOR, _ARRAY, _SCALAR):
        return _of_safetensors(code, bytes(data))
    raise ValueError(f"unknown extension type {code} in msgpack data")


def _of_safetensors(code: int, data: bytes) -> Any:
    from safetensors import SafetensorError

    try:
        if code == _TENSOR:
            from safetensors.torch import load as load_torch

            return load_torch(data)["t"]
        from safetensors.numpy import load as load_numpy

        array = load_numpy(data)["t"]
    except SafetensorError as error:
        raise ValueError(f"a tensor in the data cannot be read: {error}") from error
    return array[()] if code == _SCALAR else array
