"""Payload files: many tensors in one file of the safetensors format.

Written by the rank's writer, read by the trace.  Traces hold thousands of small tensors, and
the library's own Python takes longer over each of them than hashing, copying and comparing do;
any safetensors reader reads these files.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

import msgspec
import torch
import xxhash

#: What is stored as itself, by the format's names; the rest is stored as bytes.
NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}

#: The name of the entry of sketches.
SKETCHES = "sketches"

_LENGTH = struct.Struct("<Q")
#: Loaded tensors lie in the file's memory, and complex128 arithmetic crashes off its alignment.
_ALIGNMENT = 16


class PayloadError(Exception):
    """A payload file, or an entry of one, is not as it was written; the message says how."""


class Held(msgspec.Struct, frozen=True):
    """A tensor that waits to be written: contiguous bytes, and what they are."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    data: bytes


class _Entry(msgspec.Struct, frozen=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def encode(tensors: Mapping[str, Held]) -> bytes:
    """A payload file's content, an entry for each tensor."""
    # Wide elements first, as the format wants it: then every entry is aligned to its elements.
    order = sorted(tensors.items(), key=lambda item: -item[1].dtype.itemsize)
    entries, end = {}, 0
    for name, held in order:
        start, end = end, end + len(held.data)
        native = held.dtype in NAMES
        entries[name] = _Entry(
            NAMES[held.dtype] if native else "U8",
            held.shape if native else (len(held.data),),
            (start, end),
        )
    header = msgspec.json.encode(entries)
    header += b" " * (-(_LENGTH.size + len(header)) % _ALIGNMENT)
    return b"".join([_LENGTH.pack(len(header)), header, *(held.data for _, held in order)])


class Payload:
    """A payload file, mapped into memory.  Raises PayloadError or OSError."""

    def __init__(self, path: Path) -> None:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(_LENGTH.size)
            length = _LENGTH.unpack(head)[0] if len(head) == _LENGTH.size else size
            header = file.read(min(length, size))
        try:
            self._entries = msgspec.json.decode(header, type=dict[str, _Entry])
        except msgspec.DecodeError as error:
            raise PayloadError(f"its header cannot be read ({error})") from error
        self._start = _LENGTH.size + length
        due = self._start + max((e.data_offsets[1] for e in self._entries.values()), default=0)
        if size != due:
            raise PayloadError(f"it has {size} bytes, where its header says {due}")
        # Private: what is written to a loaded tensor never reaches the file.
        self._bytes = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)
        self._view = self._bytes.numpy().data

    def load(
        self, key: str, dtype: torch.dtype, shape: tuple[int, ...], digest: str
    ) -> torch.Tensor:
        """The tensor of an entry, in the file's memory, if its bytes have the hash `digest`."""
        entry = self._entries.get(key)
        if entry is None:
            raise PayloadError(f"it has no entry {key}")
        start, end = (self._start + offset for offset in entry.data_offsets)
        if xxhash.xxh3_128_hexdigest(self._view[start:end]) != digest:
            raise PayloadError(f"entry {key} does not have its recorded hash")
        try:
            return self._bytes[start:end].view(dtype).view(shape)
        except RuntimeError as error:
            raise PayloadError(f"entry {key} is no {dtype} of shape {list(shape)}") from error

    def rows(self, shape: tuple[int, ...], digest: str) -> torch.Tensor:
        """The float64 tensor of the entry "sketches", an unknown number of `shape`.

        `digest` is the hash of its bytes; "" where it was never said.
        """
        entry = self._entries.get(SKETCHES)
        if entry is None or entry.shape[1:] != shape:
            raise PayloadError(f"it holds no sketches of shape {list(shape)}")
        start, end = (self._start + offset for offset in entry.data_offsets)
        if digest and xxhash.xxh3_128_hexdigest(self._view[start:end]) != digest:
            raise PayloadError("its sketches do not have their recorded hash")
        try:
            return self._bytes[start:end].view(torch.float64).view(entry.shape)
        except RuntimeError as error:
            raise PayloadError(f"it holds no float64 of shape {list(entry.shape)}") from error
