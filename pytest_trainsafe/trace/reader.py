"""Reads a Trace back, and says what is wrong with one that is not whole.

Called by align and the judges.  Events are read at once, tensors when they are asked for.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import torch
import xxhash

from pytest_trainsafe.sweep.point import Point
from pytest_trainsafe.trace.payload import Payload, PayloadError
from pytest_trainsafe.trace.schema import (
    SCHEMA_VERSION,
    End,
    Event,
    InputEvent,
    Manifest,
    ModuleEvent,
    NoteEvent,
    StepEvent,
    TensorEvent,
    TensorId,
)
from pytest_trainsafe.trace.sketch import COLUMNS, ROWS, Values

FORMAT = "pytest-trainsafe trace"

#: Payload files that stay mapped, for each rank: one a step, or one for each 16 MiB of it.
MAPPED = 3

PAYLOAD_NAME = re.compile(r"payload-\d{5,}\.safetensors")


class TraceError(Exception):
    """A trace cannot be used; the message names the file, what is wrong, and what to do."""


@dataclass(slots=True)
class RankTrace:
    """What one rank recorded.  `tensors` is in the order of dataflow.

    `sketches` has the hashes of the sketches in each file, of a rank that finished.
    """

    rank: int
    coordinates: dict[str, int]
    events: list[Event] = field(default_factory=list)
    tensors: dict[TensorId, TensorEvent] = field(default_factory=dict)
    modules: dict[str, ModuleEvent] = field(default_factory=dict)
    inputs: list[InputEvent] = field(default_factory=list)
    steps: list[StepEvent] = field(default_factory=list)
    notes: list[NoteEvent] = field(default_factory=list)
    sketches: dict[str, str] = field(default_factory=dict)
    complete: bool = False

    def note(self, key: str) -> list[str]:
        """The values noted under `key`, in order."""
        return [event.value for event in self.notes if event.key == key]


@dataclass(slots=True)
class Trace:
    """A recorded Run.  `problems` says what is missing; it is empty for a complete trace.

    `point` is the Run's Point and `sizes` the size of each of its mesh axes.  `serial` is a
    number that no other open trace of this process has: what is known of a trace is kept by it.
    """

    path: Path
    manifest: Manifest
    ranks: list[RankTrace]
    problems: list[str] = field(default_factory=list)
    point: Point = field(init=False)
    sizes: dict[str, int] = field(init=False)
    serial: int = field(init=False, default_factory=itertools.count().__next__, compare=False)
    _holders: dict[TensorId, list[tuple[RankTrace, TensorEvent]]] = field(
        default_factory=dict, repr=False
    )
    _payloads: dict[tuple[int, str], Payload] = field(default_factory=dict, repr=False)
    _sketches: dict[tuple[int, str], Values] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.point = Point.of(self.manifest.point)
        self.sizes = self.point.sizes

    @classmethod
    def open(cls, path: Path | str, allow_incomplete: bool = False) -> Trace:
        """Open the trace directory `path`.

        Raises TraceError for a directory that is no trace, another schema version, or a trace
        that is not whole.  `allow_incomplete` reads what was written before a crash instead,
        and keeps the reasons in `problems`.
        """
        path = Path(path)
        manifest = _read_manifest(path)
        point = Point.of(manifest.point)
        _check_ranks(path, manifest, point)
        trace = cls(path, manifest, [])
        for rank in range(manifest.world_size):
            trace.ranks.append(_read_rank(trace, RankTrace(rank, point.coordinates(rank))))
        if not allow_incomplete:
            trace.require_complete()
        return trace

    @property
    def complete(self) -> bool:
        """Whether every rank finished its program and everything it recorded is here."""
        return not self.problems

    def require_complete(self) -> None:
        """Raise TraceError unless the trace is complete."""
        if self.problems:
            listed = "\n  ".join(self.problems)
            raise TraceError(
                f"the trace {self.path} is not complete:\n  {listed}\n"
                "Record it again; to look at what there is, open it with allow_incomplete=True."
            )

    def holders(self, id: TensorId) -> list[tuple[RankTrace, TensorEvent]]:
        """The ranks that recorded `id`, with their events, in rank order."""
        return self._held_by().get(id, [])

    def ids(self) -> Iterator[TensorId]:
        """Every tensor id once: in the order of dataflow within each rank, rank by rank."""
        return iter(self._held_by())

    def _held_by(self) -> dict[TensorId, list[tuple[RankTrace, TensorEvent]]]:
        if not self._holders:
            for rank in self.ranks:
                for id, event in rank.tensors.items():
                    self._holders.setdefault(id, []).append((rank, event))
        return self._holders

    def load(self, rank: int, event: TensorEvent) -> torch.Tensor:
        """The tensor of one rank's event, on the CPU, checked against its hash.

        Raises TraceError when the payload was not kept, is missing, or is damaged.
        """
        if not event.key:
            raise TraceError(
                f"{event.id}: rank {rank} kept only a sketch of its values. Record the run with "
                "--trainsafe-record full."
            )
        dtype = getattr(torch, event.dtype, None)
        if not isinstance(dtype, torch.dtype):
            raise TraceError(f"{event.id}: rank {rank} recorded the unknown dtype {event.dtype!r}")
        try:
            payload = self._payload(rank, event.file)
            return payload.load(event.key, dtype, event.shape, event.hash)
        except (PayloadError, OSError) as error:
            path = self.path / f"rank{rank}" / event.file
            raise _damaged(path, f"{event.id}: {error}") from error

    def sketch(self, rank: int, event: TensorEvent) -> Values:
        """The sketch of one rank's event, [8, 16] in float64: of one that has a sketch.

        Raises TraceError when it is missing or damaged.
        """
        assert event.sketch >= 0, event.id
        where = rank, event.file
        try:
            if where not in self._sketches:
                known = self.ranks[rank].sketches.get(event.file, "")
                rows = self._payload(*where).rows((ROWS, COLUMNS), known)
                self._sketches[where] = rows.numpy()
            found: Values = self._sketches[where][event.sketch]
            return found
        except (PayloadError, OSError, IndexError) as error:
            path = self.path / f"rank{rank}" / event.file
            raise _damaged(path, f"{event.id}, sketch {event.sketch}: {error}") from error

    def _payload(self, rank: int, name: str) -> Payload:
        found = self._payloads.pop((rank, name), None)
        if found is None:
            found = Payload(self.path / f"rank{rank}" / name)
            while len(self._payloads) >= MAPPED * self.manifest.world_size:
                del self._payloads[next(iter(self._payloads))]
        self._payloads[rank, name] = found  # the last used comes last
        return found


def _damaged(path: Path, reason: str) -> TraceError:
    return TraceError(f"{path} is missing or damaged: {reason}. Record the run again.")


def _read_manifest(path: Path) -> Manifest:
    file = path / "manifest.json"
    try:
        data = file.read_bytes()
    except OSError as error:
        raise TraceError(
            f"{path} is not a trace: {file.name} cannot be read ({error.strerror}). "
            "A trace is the directory that a recorded run wrote."
        ) from error
    try:
        head = msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise TraceError(f"{file} is not JSON ({error}). Record the run again.") from error
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise TraceError(
            f"{path} is not a trace: {file.name} does not say `format: {FORMAT}`. "
            "It belongs to something else; choose another directory."
        )
    if head.get("schema") != SCHEMA_VERSION:
        raise TraceError(
            f"{file} has schema version {head.get('schema')!r}, and this pytest-trainsafe reads "
            f"version {SCHEMA_VERSION}. Record the run again, or use the release that wrote it."
        )
    try:
        return msgspec.json.decode(data, type=Manifest)
    except msgspec.ValidationError as error:
        raise TraceError(f"{file} is damaged: {error}. Record the run again.") from error


def _check_ranks(path: Path, manifest: Manifest, point: Point) -> None:
    if point.world_size != manifest.world_size:
        raise TraceError(
            f"{path / 'manifest.json'} contradicts itself: {point} is a world of "
            f"{point.world_size} ranks, and world_size is {manifest.world_size}. "
            "Record the run again."
        )
    there = {int(m[1]) for p in path.iterdir() if (m := re.fullmatch(r"rank(\d+)", p.name))}
    if extra := sorted(there - set(range(manifest.world_size))):
        raise TraceError(
            f"{path} holds rank{extra[0]}, and its manifest says {manifest.world_size} ranks: "
            "two runs wrote to one directory. Record into an empty directory."
        )


def _read_rank(trace: Trace, rank: RankTrace) -> RankTrace:
    """Fill `rank` up to the first fault, which goes to `trace.problems`."""
    file = trace.path / f"rank{rank.rank}" / "events.jsonl"
    fault = _read_events(file, rank)
    if fault:
        trace.problems.append(fault)
    for name in dict.fromkeys(event.file for event in rank.tensors.values() if event.file):
        try:
            trace._payload(rank.rank, name)
        except (PayloadError, OSError) as error:
            trace.problems.append(str(_damaged(file.parent / name, str(error))))
    rank.complete = not any(problem.startswith(str(file.parent)) for problem in trace.problems)
    return rank


def _read_events(file: Path, rank: RankTrace) -> str | None:
    try:
        data = file.read_bytes()
    except OSError as error:
        return f"{file} cannot be read ({error.strerror}): rank {rank.rank} left no events"
    lines = data.split(b"\n")
    decoder = msgspec.json.Decoder(Event)
    for number, line in enumerate(lines[:-1], start=1):
        try:
            event = decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return f"{file} line {number} is damaged: {error}"
        if isinstance(event, End):
            if event.events != len(rank.events):
                return f"{file} says {event.events} events and holds {len(rank.events)}"
            if lines[number:] != [b""]:
                return f"{file} goes on after its end (line {number})"
            before = memoryview(data)[: len(data) - len(line) - 1]
            if event.hash != xxhash.xxh3_128_hexdigest(before):
                return f"{file} does not have its recorded hash: it was changed since"
            rank.sketches = event.sketches
            return None
        if fault := _take(rank, event):
            return f"{file} line {number} is damaged: {fault}"
    if lines[-1]:
        return f"{file} is cut in the middle of line {len(lines)}: the rank died or the disk filled"
    return f"{file} has no end: rank {rank.rank} did not finish (it died, or is still running)"


def _take(rank: RankTrace, event: Event) -> str | None:
    match event:
        case TensorEvent():
            if event.seq != len(rank.events):
                return f"event {len(rank.events)} is numbered {event.seq}: lines were lost"
            if event.file and not PAYLOAD_NAME.fullmatch(event.file):
                return f"{event.file!r} is not the name of a payload"
            if event.id in rank.tensors:
                return f"{event.id} was recorded twice"
            rank.tensors[event.id] = event
        case ModuleEvent():
            rank.modules[event.module] = event
        case InputEvent():
            rank.inputs.append(event)
        case StepEvent():
            rank.steps.append(event)
        case NoteEvent():
            rank.notes.append(event)
        case _:
            raise AssertionError(event)
    rank.events.append(event)
    return None
