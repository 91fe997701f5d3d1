"""Writes and reads the file with the decisions of one rank, in the order in which it took them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import torch
import xxhash

from pytest_trainsafe.arithmetic import Decisions
from pytest_trainsafe.core.untrusted import MALFORMED, read_file
from pytest_trainsafe.errors import TraceError
from pytest_trainsafe.judges.exact.events import DecisionsFile
from pytest_trainsafe.trace.reader import Trace

#: The name of a rank's file in its folder.
FILE = "decisions.msgpack"

#: The largest size of a file, in bytes.
MAX_FILE = 2**31

#: The dtypes of decisions: masks, indices, and numbers that leave the tensors.
_NUMPY = {"bool": np.bool_, "int64": np.int64, "int32": np.int32, "uint8": np.uint8}

_Size = Annotated[int, msgspec.Meta(ge=0, le=2**48)]
_Shape = Annotated[tuple[_Size, ...], msgspec.Meta(max_length=64)]


class _Tensor(msgspec.Struct, frozen=True, array_like=True, tag=True):
    dtype: str
    shape: _Shape
    data: bytes


class _Decision(msgspec.Struct, frozen=True, array_like=True):
    name: Annotated[str, msgspec.Meta(max_length=200)]
    shapes: tuple[_Shape, ...]
    taken: _Tensor | bool | int | float


_DECODER = msgspec.msgpack.Decoder(list[_Decision])


def write(folder: Path, decisions: Decisions) -> DecisionsFile:
    """Writes the file of a rank into its folder.  Raises TraceError if it cannot be written."""
    content = msgspec.msgpack.encode([_of(*each) for each in decisions.taken])
    try:
        folder.mkdir(0o700, parents=True, exist_ok=True)
        (folder / FILE).write_bytes(content)
    except OSError as error:
        raise TraceError(f"the decisions cannot be written to {folder / FILE}: {error}") from error
    return DecisionsFile(len(content), xxhash.xxh3_128_hexdigest(content))


def read(trace: Trace, rank: int) -> Decisions:
    """The decisions of a rank.  Raises TraceError if its file is missing, damaged or too large."""
    path = trace.path / f"rank{rank}" / FILE
    noted = next(iter(trace.ranks[rank].events_of(DecisionsFile)), None)
    if noted is None:
        raise TraceError(f"{trace.path} has no decisions of rank {rank}; record it again")
    try:
        content = read_file(path, below=trace.path, max_bytes=MAX_FILE)
        if xxhash.xxh3_128_hexdigest(content) != noted.hash:
            raise TraceError(f"{path} is damaged: its hash is not the recorded one")
        found = _DECODER.decode(content)
    except (OSError, *MALFORMED) as error:
        raise TraceError(f"{path} cannot be read: {error}") from error
    return Decisions([(each.name, each.shapes, _taken(each, path)) for each in found])


def digest(decisions: Decisions) -> str:
    """A hash of decisions.  Fractions, which another machine may round otherwise, are left out."""
    kept = [
        (name, shapes, "" if isinstance(each, float) else each)
        for name, shapes, each in (decisions.taken)
    ]
    return xxhash.xxh3_64_hexdigest(msgspec.msgpack.encode([_of(*each) for each in kept]))


def _of(name: str, shapes: tuple[tuple[int, ...], ...], taken: Any) -> _Decision:
    if isinstance(taken, torch.Tensor):
        dtype = str(taken.dtype).removeprefix("torch.")
        assert dtype in _NUMPY, (name, dtype)
        taken = _Tensor(dtype, tuple(taken.shape), taken.contiguous().numpy().tobytes())
    return _Decision(name, shapes, taken)


def _taken(decision: _Decision, path: Path) -> Any:
    taken = decision.taken
    if not isinstance(taken, _Tensor):
        return taken
    try:
        array: np.ndarray[Any, Any] = np.frombuffer(
            bytearray(taken.data), dtype=_NUMPY[taken.dtype]
        )
        return torch.from_numpy(array).reshape(taken.shape)
    except (KeyError, ValueError, RuntimeError) as error:
        raise TraceError(f"{path} has an impossible decision {decision.name}: {error}") from error
