"""Writes and reads the file in which a replay checkpoint stores the state of one rank.

The file has the safetensors format. Its metadata has one entry, the header as JSON, whose hash
covers the header and every tensor. It is written under another name and renamed, so that a file
with the final name is complete.
"""

from __future__ import annotations

import contextlib
import os
import struct
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import safetensors
import safetensors.torch
import torch
import xxhash

from pytest_trainsafe.core.untrusted import MALFORMED, open_file, read_file, shown
from pytest_trainsafe.errors import ReplayError
from pytest_trainsafe.trace.schema import MAX_RANKS

FORMAT = "pytest-trainsafe replay checkpoint"
SCHEMA = 1

#: The most bytes of a rank's file: loaders may keep a shuffle buffer in their state.
MAX_BYTES = 2**32

#: The longest header of the format.
_MAX_HEADER = 100_000_000

_ENTRY = "trainsafe"
_LENGTH = struct.Struct("<Q")

#: Unsigned integers are written as signed ones, because safetensors 0.4 cannot write them.
_SIGNED = {
    "uint16": (torch.uint16, torch.int16),
    "uint32": (torch.uint32, torch.int32),
    "uint64": (torch.uint64, torch.int64),
}

Counter = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class Segment(msgspec.Struct, frozen=True):
    """Calls of one function, which a restarted program repeats to draw the same numbers again.

    The program passed the function to `ReplayCheckpoint.regenerates`. `calls` counts the calls;
    nothing else draws from their generators between them. `states` maps the names of these
    generators to their states before the first call, and `after` maps the same names to texts of
    the states after the last call.
    """

    calls: Annotated[int, msgspec.Meta(ge=1, le=2**53)]
    states: dict[str, Any]
    after: dict[str, str]


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The description of a rank's file; the states in it are plain data as `tree` encodes it.

    `unsigned` maps the names of tensors that are written as signed integers to their dtypes.
    """

    format: str = FORMAT
    schema: int = SCHEMA
    program: str
    world_size: Annotated[int, msgspec.Meta(ge=1, le=MAX_RANKS)]
    rank: Annotated[int, msgspec.Meta(ge=0, lt=MAX_RANKS)]
    step: Annotated[int, msgspec.Meta(ge=0, le=2**53)]
    counters: dict[str, Counter]
    kinds: dict[str, str]
    generators: dict[str, Any]
    states: dict[str, Any]
    regenerated: dict[str, list[Segment]]
    unsigned: dict[str, str] = {}
    hash: str = ""


def file_of(folder: Path, rank: int) -> Path:
    """The file of one rank in the folder of a checkpoint."""
    return folder / f"replay-rank{rank}.safetensors"


def write(folder: Path, header: Header, tensors: Mapping[str, torch.Tensor]) -> Header:
    """Writes a rank's file; returns the header with its hash."""
    signs = {dtype: (text, signed) for text, (dtype, signed) in _SIGNED.items()}
    unsigned = {name: signs[each.dtype] for name, each in tensors.items() if each.dtype in signs}
    stored = {**tensors, **{name: tensors[name].view(to) for name, (_, to) in unsigned.items()}}
    dtypes = {name: text for name, (text, _) in unsigned.items()}
    header = msgspec.structs.replace(header, unsigned=dtypes, hash="")
    header = msgspec.structs.replace(header, hash=_hash(header, stored))
    text = msgspec.json.encode(header).decode()
    content = safetensors.torch.save(stored, metadata={_ENTRY: text})
    replace_file(file_of(folder, header.rank), content)
    return header


def replace_file(path: Path, content: bytes) -> None:
    """Writes a file atomically: another process sees either the new content or the old one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise


def read(path: Path) -> tuple[Header, dict[str, torch.Tensor]]:
    """The header and the tensors of a rank's file, with their hash verified.

    Raises ReplayError for a file that is missing, damaged, of another kind or of another
    schema.
    """
    try:
        data = read_file(path, max_bytes=MAX_BYTES)
    except FileNotFoundError as error:
        raise ReplayError(
            f"{path} does not exist: ReplayCheckpoint.save wrote no file into this folder on this "
            "rank. Give the folder of a checkpoint"
        ) from error
    except OSError as error:
        raise ReplayError(f"{path} cannot be read: {error.strerror}") from error
    header = _header(path, data)
    try:
        tensors = safetensors.torch.load(data)
    except (safetensors.SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise _damaged(path, shown(error)) from error
    if header.hash != _hash(msgspec.structs.replace(header, hash=""), tensors):
        raise _damaged(path, "its content does not have the recorded hash")
    for name, dtype in header.unsigned.items():
        unsigned, signed = _SIGNED.get(dtype, (None, None))
        if name not in tensors or tensors[name].dtype != signed or unsigned is None:
            raise _damaged(path, f"it has no tensor {shown(name)} of dtype {shown(dtype)}")
        tensors[name] = tensors[name].view(unsigned)
    return header, tensors


def step_of(path: Path) -> int | None:
    """The step in the header of another rank's file; None if this rank cannot read the file."""
    try:
        with os.fdopen(open_file(path), "rb") as file:
            [length] = _LENGTH.unpack(file.read(_LENGTH.size))
            data = _LENGTH.pack(length) + file.read(min(length, _MAX_HEADER))
    except (OSError, struct.error):
        return None
    return _header(path, data).step


def _header(path: Path, data: bytes) -> Header:
    try:
        [length] = _LENGTH.unpack_from(data)
        metadata = msgspec.json.decode(data[_LENGTH.size : _LENGTH.size + length])["__metadata__"]
        text = metadata[_ENTRY]
        head = msgspec.json.decode(text)
        known = head["format"] == FORMAT
    except (*MALFORMED, struct.error, KeyError, TypeError) as error:
        raise ReplayError(
            f"{path} is not a replay checkpoint, or is damaged: its header is missing or "
            "malformed. Give a folder that ReplayCheckpoint.save wrote, or an earlier checkpoint"
        ) from error
    if not known:
        raise ReplayError(
            f"{path} is not a replay checkpoint: it has the header of another format. Give a "
            "folder that ReplayCheckpoint.save wrote"
        )
    if head.get("schema") != SCHEMA:
        found = shown(head.get("schema"), 40)
        raise ReplayError(
            f"{path} has schema {found}, and this pytest-trainsafe reads schema {SCHEMA}. Load it "
            "with the release that saved it, or run from the start"
        )
    try:
        return msgspec.json.decode(text, type=Header)
    except MALFORMED as error:
        raise _damaged(path, shown(error)) from error


def _damaged(path: Path, why: str) -> ReplayError:
    return ReplayError(f"{path} is damaged: {why}. Load an earlier checkpoint, or save it again")


def _hash(header: Header, tensors: Mapping[str, torch.Tensor]) -> str:
    digest = xxhash.xxh3_128(msgspec.json.encode(header, order="deterministic"))
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(f"{name}\0{tensor.dtype}{tuple(tensor.shape)}".encode())
        if tensor.numel():
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
