"""Payload files: many tensors in one file of the safetensors format.

Written by the rank's writer, read by the trace.  The encoding is our own because traces hold
thousands of small tensors, and the library's Python code takes longer per tensor than hashing,
copying and comparing do.  Any safetensors reader can read these files.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
import torch
import xxhash

from pytest_trainsafe.core.prepared import prepared
from pytest_trainsafe.core.untrusted import MALFORMED, open_file
from pytest_trainsafe.errors import TrainsafeError

#: The dtypes that the format can store, with its names; other dtypes are stored as bytes.
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

#: The name of the entry that holds sketches.
SKETCHES = "sketches"

_LENGTH = struct.Struct("<Q")

#: Maximum bytes of a header (the format's own limit), and of a file (more than a device holds).
MAX_HEADER, MAX_BYTES = 100_000_000, 2**37

#: Loaded tensors share the file's memory, and complex128 arithmetic crashes if misaligned.
_ALIGNMENT = 16


class PayloadError(TrainsafeError):
    """A payload file, or an entry of it, is damaged; the message says how."""


class PendingTensor(msgspec.Struct, frozen=True):
    """A tensor that waits to be written: its contiguous bytes, dtype and shape."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    data: bytes


@prepared
class _Entry(msgspec.Struct, frozen=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def encode(tensors: Mapping[str, PendingTensor]) -> list[bytes]:
    """The content of a payload file with one entry per tensor, in parts.

    It is not joined, because touching as much new memory again takes longer than writing the parts.
    """
    # Wide elements first, as the format requires: every entry is then aligned to its elements.
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
    return [_LENGTH.pack(len(header)), header, *(held.data for _, held in order)]


class Payload:
    """A payload file, mapped into memory.  Opening one raises PayloadError or OSError."""

    def __init__(self, path: Path, below: Path | None = None) -> None:
        with os.fdopen(open_file(path, below=below, max_bytes=MAX_BYTES), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(_LENGTH.size)
            length = _LENGTH.unpack(head)[0] if len(head) == _LENGTH.size else size
            if length > min(size, MAX_HEADER):
                raise PayloadError(
                    "the header of the payload file cannot be read (its length is given as "
                    f"{length} bytes, but the file has {size} bytes, and a header may have at most "
                    f"{MAX_HEADER})"
                )
            try:
                self._entries = msgspec.json.decode(file.read(length), type=dict[str, _Entry])
            except MALFORMED as error:
                message = f"the header of the payload file cannot be read ({error})"
                raise PayloadError(message) from None
            self._start = _LENGTH.size + length
            expected = self._start + _end_of(self._entries.values())
            if size != expected:
                raise PayloadError(
                    f"the payload file has {size} bytes, but its header says {expected}"
                )
            # Map the opened file, because another file may have the path by now.  The mapping is
            # private: writing to a loaded tensor never changes the file.
            opened = f"/proc/self/fd/{file.fileno()}"
            self._bytes = torch.from_file(opened, shared=False, size=size, dtype=torch.uint8)
        self._view = self._bytes.numpy().data

    def require(self, key: str, dtype: torch.dtype, shape: tuple[int, ...]) -> tuple[int, int]:
        """Where the bytes of the entry `key` of this dtype and shape begin and end in the file.

        Raises PayloadError if there is no such entry.
        """
        entry = self._entries.get(key)
        if entry is None:
            raise PayloadError(f"the payload file has no entry {key}")
        start, end = entry.data_offsets
        size = math.prod(shape) * dtype.itemsize
        name = NAMES.get(dtype)
        stored = ("U8", (size,)) if name is None else (name, shape)
        if end - start != size or (entry.dtype, entry.shape) != stored:
            raise PayloadError(
                f"entry {key} of the payload file is not a {dtype} tensor of shape {list(shape)}"
            )
        return self._start + start, self._start + end

    def sketches(self, shape: tuple[int, ...]) -> int:
        """The number of sketches of `shape` in the file."""
        entry = self._entries.get(SKETCHES)
        if entry is None:
            return 0
        self.require(SKETCHES, torch.float64, (*entry.shape[:1], *shape))
        return entry.shape[0]

    def load(
        self, key: str, dtype: torch.dtype, shape: tuple[int, ...], digest: str
    ) -> torch.Tensor:
        """The tensor of an entry, sharing the file's memory.

        Raises PayloadError unless its dtype, shape and hash are as given.
        """
        start, end = self.require(key, dtype, shape)
        if xxhash.xxh3_128_hexdigest(self._view[start:end]) != digest:
            raise PayloadError(f"entry {key} of the payload file does not have its recorded hash")
        if start % dtype.itemsize:
            raise PayloadError(
                f"entry {key} of the payload file is not a {dtype} tensor of shape {list(shape)}"
            )
        if start == end:
            return torch.empty(shape, dtype=dtype)
        # Not a view of a part of `_bytes`, which would take three calls for each tensor.
        count = (end - start) // dtype.itemsize
        flat = torch.frombuffer(self._view, dtype=dtype, count=count, offset=start)
        return flat.view(shape)

    def rows(self, shape: tuple[int, ...], digest: str) -> torch.Tensor:
        """The sketches in the file as one float64 tensor of shape [n, *shape].

        `digest` is the hash of its bytes, "" if none was recorded.
        """
        if not self.sketches(shape):
            raise PayloadError(
                "the payload file has no sketches (random projections of tensors) of shape "
                f"{list(shape)}"
            )
        entry = self._entries[SKETCHES]
        start, end = (self._start + offset for offset in entry.data_offsets)
        if digest and xxhash.xxh3_128_hexdigest(self._view[start:end]) != digest:
            raise PayloadError("the sketches in the payload file do not have their recorded hash")
        try:
            return self._bytes[start:end].view(torch.float64).view(entry.shape)
        except RuntimeError as error:  # misaligned
            raise PayloadError(
                "the sketches in the payload file are not a float64 tensor of shape "
                f"{list(entry.shape)}"
            ) from error


def _end_of(entries: Iterable[_Entry]) -> int:
    """The byte at which the last entry ends.  Raises PayloadError if there are gaps or overlaps."""
    here = 0
    for start, end in sorted(entry.data_offsets for entry in entries):
        if start != here or end < start:
            raise PayloadError(
                f"the header of the payload file has an entry from byte {start} to {end}, after "
                f"one that ends at byte {here}"
            )
        here = end
    return here
