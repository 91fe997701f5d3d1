"""Writes and reads a table as a file, to which complete parts are appended.

A file begins with a line that names the format. Parts follow: each has a length, a hash, and
msgpack data with the texts, the meta variables and the rows that it adds. After a crash, all
complete parts can be read. Hashes detect damage, not tampering; `check.py` checks the content.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import msgspec
import numpy as np
import xxhash

from pytest_trainsafe.core.cut_text import encodable
from pytest_trainsafe.core.untrusted import MALFORMED, open_file, shown
from pytest_trainsafe.errors import TraceError
from pytest_trainsafe.judges.learn.events.check import MAX_NAME, check
from pytest_trainsafe.judges.learn.events.events import MAX_TEXT, Call, Change, Plain
from pytest_trainsafe.judges.learn.events.table import (
    CALLS,
    CHANGES,
    RETURNS,
    STEPS,
    VALUES,
    Columns,
    Part,
    Table,
    TableBuilder,
)
from pytest_trainsafe.trace.events import register

if TYPE_CHECKING:
    from pytest_trainsafe.trace.reader import Trace

#: The first bytes of a file.
FORMAT = b"pytest-trainsafe observed 1\n"

#: The name of a rank's file in its folder.
FILE = "observed.bin"

#: The largest sizes of a file and of one part, in bytes.
MAX_FILE, MAX_PART = 2**31, 2**27

#: The numbers of waiting rows of values from which a part is written: FEW at the end of a step,
#: MANY at the end of a call.
FEW, MANY = 2000, 200_000

_HEADER = struct.Struct("<IQ")

_KINDS = {
    "calls": CALLS,
    "changes": CHANGES,
    "values": VALUES,
    "steps": STEPS,
    "returns": RETURNS,
}

_Name = Annotated[str, msgspec.Meta(max_length=MAX_NAME)]
_Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]
_Meta = Annotated[dict[_Name, bool | int | float | _Text | None], msgspec.Meta(max_length=256)]


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part as it is stored in the file.  A column is the little-endian bytes of its rows."""

    texts: list[_Name]
    metas: list[_Meta]
    columns: dict[str, dict[str, bytes]]


@register
class ObservedEvent(msgspec.Struct, frozen=True, tag="observed"):
    """States that a rank's file is complete, and how many parts and bytes and which hash it has."""

    parts: Annotated[int, msgspec.Meta(ge=0, le=2**31)]
    bytes: Annotated[int, msgspec.Meta(ge=0, le=MAX_FILE)]
    hash: Annotated[str, msgspec.Meta(max_length=32)]


@register
class UnseenCalls(msgspec.Struct, frozen=True, tag="unseen_calls"):
    """A sentence on what the rank should have observed but could not."""

    what: _Name


@register
class SlipPlace(msgspec.Struct, frozen=True, tag="slip_place"):
    """The "file:line" of the project's code that led to a slip, whose text is as in the table."""

    text: _Name
    place: _Name


class TableWriter:
    """A Listener that writes a table to a file, part by part.

    If the file would grow beyond `MAX_FILE`, nothing more is written and `full` is True.  Raises
    TraceError if the file cannot be written.
    """

    def __init__(self, path: Path, rank: int) -> None:
        self._builder = TableBuilder(rank)
        self._path = path
        self._hash = xxhash.xxh3_128()
        self._bytes = self._parts = 0
        self.full = False
        self._write(FORMAT)

    def entered(self, call: Call) -> None:
        """Adds the beginning of a call."""
        self._builder.entered(call)

    def left(self, call: Call) -> None:
        """Adds the end of a call; writes a part if it is large enough."""
        self._builder.left(call)
        if self._builder.waiting >= MANY:
            self.flush()

    def changed(self, change: Change) -> None:
        """Adds a change."""
        self._builder.changed(change)

    def step_ended(self, step: int) -> None:
        """Adds the end of a step; writes a part if it is large enough."""
        self._builder.step_ended(step)
        if self._builder.waiting >= FEW:
            self.flush()

    def flush(self) -> None:
        """Writes one part, with all data that was added since the previous part."""
        data = encode(self._builder.take_part())
        if self.full or self._bytes + _HEADER.size + len(data) > MAX_FILE or len(data) > MAX_PART:
            self.full = True
            return
        self._write(_HEADER.pack(len(data), xxhash.xxh3_64_intdigest(data)) + data)
        self._parts += 1

    def close(self) -> ObservedEvent | None:
        """Writes the last part.  Returns the file's final event; None if the file is full."""
        self.flush()
        if self.full:
            return None
        return ObservedEvent(self._parts, self._bytes, self._hash.hexdigest())

    def _write(self, data: bytes) -> None:
        try:
            with self._path.open("ab", buffering=0) as file:
                view = memoryview(data)
                while view:
                    view = view[os.write(file.fileno(), view) :]
        except OSError as error:
            raise TraceError(
                f"cannot write {self._path}: {error.strerror}. The trace is incomplete. Free some "
                "space, or let pytest write elsewhere (--basetemp, or TMPDIR)."
            ) from error
        self._hash.update(data)
        self._bytes += len(data)


def encode(part: Part) -> bytes:
    """Encodes a part as msgpack data."""
    columns = {
        table: {
            name: np.ascontiguousarray(getattr(part, table)[name], _little(kind)).tobytes()
            for name, kind in kinds.items()
        }
        for table, kinds in _KINDS.items()
    }
    texts = [encodable(text if len(text) <= MAX_NAME else text[:MAX_NAME]) for text in part.texts]
    metas = [
        {name: encodable(v) if isinstance(v, str) else v for name, v in meta.items()}
        for meta in part.metas
    ]
    return msgspec.msgpack.encode(_Record(texts, metas, columns))


def read_table(
    path: Path, rank: int, *, below: Path | None = None, sealed: ObservedEvent | None = None
) -> Table:
    """Reads the table of one rank from its file.

    `below` is a folder above `path`, such as the trace's: no folder between them may be a link.
    With `sealed`, the file must be complete and have the size and the hash in this event.  Without
    it, all complete parts are read.  Raises TraceError if the file is missing, damaged, or not as
    `sealed` says.
    """
    try:
        descriptor = open_file(path, below=below, max_bytes=MAX_FILE)
    except OSError as error:
        raise TraceError(
            f"{path} cannot be read: {error.strerror}. Record the run again."
        ) from None
    with os.fdopen(descriptor, "rb") as file:
        return _read(path, file, rank, sealed)


def _read(path: Path, file: BinaryIO, rank: int, sealed: ObservedEvent | None) -> Table:
    digest = xxhash.xxh3_128()
    start = file.read(len(FORMAT))
    if start != FORMAT:
        raise _damaged(
            path, "the file does not begin like a file of observed calls of this version"
        )
    digest.update(start)
    size = len(start)
    records: list[_Record] = []
    while header := file.read(_HEADER.size):
        length, expected = _HEADER.unpack(header) if len(header) == _HEADER.size else (0, 0)
        if length > MAX_PART:
            raise _damaged(
                path,
                f"part {len(records)} has {length} bytes, more than {MAX_PART}",
            )
        data = file.read(length)
        if len(header) < _HEADER.size or len(data) < length:
            break  # the rank died while it wrote this part
        if xxhash.xxh3_64_intdigest(data) != expected:
            raise _damaged(path, f"the hash of part {len(records)} does not match its content")
        digest.update(header + data)
        size += len(header) + length
        try:
            records.append(msgspec.msgpack.decode(data, type=_Record))
        except MALFORMED as error:
            raise _damaged(path, f"part {len(records)}: {shown(error)}") from None
    if sealed is not None and sealed != ObservedEvent(len(records), size, digest.hexdigest()):
        raise _damaged(path, "the file's size or hash differs from what the rank recorded")
    return _joined(path, records, rank)


def _joined(path: Path, records: Sequence[_Record], rank: int) -> Table:
    joined: dict[str, Columns] = {}
    for table, kinds in _KINDS.items():
        pieces = [_columns(path, record, table, kinds) for record in records]
        joined[table] = {
            name: np.concatenate([piece[name] for piece in pieces] or [np.empty(0, kind)])
            for name, kind in kinds.items()
        }
    texts = [text for record in records for text in record.texts]
    metas: list[Mapping[str, Plain]] = [meta for record in records for meta in record.metas]
    calls, returns = joined["calls"], joined.pop("returns")
    rows = returns["row"].astype(np.int64)
    if len(rows) and not (int(rows.min()) >= 0 and int(rows.max()) < len(calls["entry"])):
        raise _damaged(path, "a call returned that never began")
    for name in RETURNS:
        if name != "row":
            calls[name][rows] = returns[name]
    table_read = Table(rank, texts, metas, **joined)
    fault = check(table_read)
    if fault:
        raise _damaged(path, fault)
    return table_read


def _columns(path: Path, record: _Record, table: str, kinds: Mapping[str, str]) -> Columns:
    held = record.columns.get(table, {})
    if set(held) != set(kinds):
        raise _damaged(path, f"the columns of the file's {table} are not those of this version")
    try:
        found = {name: np.frombuffer(held[name], _little(kind)) for name, kind in kinds.items()}
    except ValueError:
        raise _damaged(
            path, f"a column of the file's {table} is cut in the middle of a row"
        ) from None
    if len({len(column) for column in found.values()}) > 1:
        raise _damaged(path, f"the columns of the file's {table} have different lengths")
    return found


def _little(kind: str) -> str:
    return kind if kind in ("?", "u1") else f"<{kind}"


def _damaged(path: Path, reason: str) -> TraceError:
    return TraceError(f"{path} is damaged: {reason}. Record the run again.")


def observed(trace: Trace, rank: int) -> Table:
    """The API calls and changes of state that a rank observed.

    For a rank that did not finish, the table has the calls and changes that were written before
    the rank ended.  Raises TraceError if the Run observed none (`RunSpec.observe`), or if the file
    is missing or damaged.
    """
    if trace.manifest.spec.observe is None:
        raise TraceError(
            f"{trace.path} has no observed calls: its Run did not observe any. Record it with "
            "RunSpec(observe=Observe())."
        )
    here = trace.ranks[rank]
    sealed = next(iter(here.events_of(ObservedEvent)), None)
    if sealed is None and here.complete:
        raise TraceError(
            f"the observed calls of rank {rank} in {trace.path} were too many for one file. "
            "Observe fewer APIs, fewer variables, or fewer steps."
        )
    path = trace.path / f"rank{rank}" / FILE
    return read_table(path, rank, below=trace.path, sealed=sealed)
