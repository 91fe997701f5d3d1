"""Reads a Trace back, and says what is wrong with one that is not whole.

Called by align and the judges.  Events are read at once, tensors when they are asked for.
"""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import torch
import xxhash

from pytest_trainsafe.core.point import MESH_AXES, Point
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.core.untrusted import MALFORMED, open_file, read_file, shown
from pytest_trainsafe.trace.check import (
    DTYPES,
    FEW_ELEMENTS,
    MOST_TIMES,
    TensorCheck,
    fault_of_note,
)
from pytest_trainsafe.trace.payload import Payload, PayloadError
from pytest_trainsafe.trace.rng.check import fault_of_rng
from pytest_trainsafe.trace.rng.events import RngEvent
from pytest_trainsafe.trace.schema import (
    MOST_MANIFEST,
    MOST_RANKS,
    SCHEMA_VERSION,
    End,
    Event,
    InputEvent,
    Manifest,
    ModuleEvent,
    NoteEvent,
    StepEvent,
    TensorEvent,
    manifest_hash,
    seal,
)
from pytest_trainsafe.trace.sketch import COLUMNS, ROWS, Values
from pytest_trainsafe.trace.stand_ins import stand_ins

FORMAT = "pytest-trainsafe trace"

#: Payload files that stay mapped, for each rank: one a step, or one for each 16 MiB of it.
MAPPED = 3

PAYLOAD_NAME = re.compile(r"payload-\d{5,12}\.safetensors", re.ASCII)

#: Most bytes of a rank's events and of one of them: some millions, and the longest is an End,
#: with a hash for each payload file.
MOST_EVENTS, MOST_LINE = 2**31, 2**24

#: What flows between modules.
_FLOWS = frozenset({"activation", "activation_grad"})

#: Problems that a message lists.
MOST_LISTED = 20


class TraceError(Exception):
    """A trace cannot be used; the message names the file, what is wrong, and what to do."""


@dataclass(slots=True)
class RankTrace:
    """What one rank recorded.  `tensors` is in the order of dataflow, `rng` in that of time.

    `sketches` has the hashes of the sketches in each file, and `manifest` that of the manifest,
    of a rank that finished.
    """

    rank: int
    coordinates: dict[str, int]
    events: list[Event] = field(default_factory=list)
    tensors: dict[TensorId, TensorEvent] = field(default_factory=dict)
    modules: dict[str, ModuleEvent] = field(default_factory=dict)
    inputs: list[InputEvent] = field(default_factory=list)
    steps: list[StepEvent] = field(default_factory=list)
    notes: list[NoteEvent] = field(default_factory=list)
    rng: list[RngEvent] = field(default_factory=list)
    sketches: dict[str, str] = field(default_factory=dict)
    manifest: str | None = None
    complete: bool = False

    def note(self, key: str) -> list[str]:
        """The values noted under `key`, in order."""
        return [event.value for event in self.notes if event.key == key]


@dataclass(slots=True)
class Trace:
    """A recorded Run.  `problems` says what is missing; it is empty for a complete trace.

    `point` is the Run's Point and `sizes` the size of each of its mesh axes.  `serial` is a
    number that no other open trace of this process has: what is known of a trace is kept by it.
    `permuted` has the orders that restore the dimensions of outputs, by module and place, which
    were found and not declared; `renumbered` the modules whose calls have other numbers here than
    their ranks gave them.
    """

    path: Path
    manifest: Manifest
    ranks: list[RankTrace]
    problems: list[str] = field(default_factory=list)
    permuted: dict[tuple[str, str], tuple[int, ...]] = field(default_factory=dict)
    renumbered: frozenset[str] = frozenset()
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
        manifest, digest = _read_manifest(path)
        point = _point_of(path, manifest)
        _check_ranks(path, manifest)
        trace = cls(path, manifest, [])
        check = TensorCheck(trace.sizes)
        for rank in range(manifest.world_size):
            trace.ranks.append(_read_rank(trace, RankTrace(rank, point.coordinates(rank)), check))
        trace.problems += _unlike_sealed(trace, digest)
        trace.problems += _too_large(trace, check)
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
            listed = "\n  ".join(self.problems[:MOST_LISTED])
            if len(self.problems) > MOST_LISTED:
                listed += f"\n  and {len(self.problems) - MOST_LISTED} more"
            raise TraceError(
                f"the trace {self.path} is not complete:\n  {listed}\n"
                "Record it again; to look at what there is, open it with allow_incomplete=True."
            )

    def holders(self, id: TensorId) -> list[tuple[RankTrace, TensorEvent]]:
        """The ranks that recorded `id`, with their events, in rank order.

        A stage that has only a stand-in for the module, such as `nn.Identity`, is left out.
        """
        return self._held_by().get(id, [])

    def ids(self) -> Iterator[TensorId]:
        """Every tensor id once: in the order of dataflow within each rank, rank by rank."""
        return iter(self._held_by())

    def _held_by(self) -> dict[TensorId, list[tuple[RankTrace, TensorEvent]]]:
        if not self._holders:
            absent = self.stand_ins()
            for rank in self.ranks:
                without = absent.get(rank.coordinates["pp"], frozenset())
                for id, event in rank.tensors.items():
                    if id.module not in without or id.kind not in _FLOWS:
                        self._holders.setdefault(id, []).append((rank, event))
        return self._holders

    def stand_ins(self) -> dict[int, frozenset[str]]:
        """By pipeline stage, the modules that stand in for those of another stage."""
        if self.sizes["pp"] == 1:
            return {}
        stages: dict[int, dict[str, ModuleEvent]] = {}
        for rank in self.ranks:
            stages.setdefault(rank.coordinates["pp"], {}).update(rank.modules)
        return stand_ins(stages)

    def load(self, rank: int, event: TensorEvent) -> torch.Tensor:
        """The tensor of one rank's event, on the CPU, checked against its hash.

        Raises TraceError when the payload was not kept, is missing, or is damaged.
        """
        if not event.key:
            raise TraceError(
                f"{event.id}: rank {rank} kept only a sketch of its values. Record the run with "
                "--trainsafe-record full."
            )
        try:
            payload = self._payload(rank, event.file)
            return payload.load(event.key, DTYPES[event.dtype], event.shape, event.hash)
        except (PayloadError, OSError) as error:
            path = self.path / f"rank{rank}" / event.file
            raise _damaged(path, f"{event.id}: {_reason(error)}") from error

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
            raise _damaged(path, f"{event.id}, sketch {event.sketch}: {_reason(error)}") from error

    def _payload(self, rank: int, name: str) -> Payload:
        found = self._payloads.pop((rank, name), None)
        if found is None:
            found = Payload(self.path / f"rank{rank}" / name, below=self.path)
            while len(self._payloads) >= MAPPED * self.manifest.world_size:
                del self._payloads[next(iter(self._payloads))]
        self._payloads[rank, name] = found  # the last used comes last
        return found


def _damaged(path: Path, reason: str) -> TraceError:
    return TraceError(f"{path} is missing or damaged: {shown(reason)}. Record the run again.")


def _read_manifest(path: Path) -> tuple[Manifest, str]:
    """The manifest and its hash."""
    file = path / "manifest.json"
    try:
        data = read_file(file, below=path, most=MOST_MANIFEST)
    except OSError as error:
        raise TraceError(
            f"{path} is not a trace: {file.name} cannot be read ({error.strerror}). "
            "A trace is the directory that a recorded run wrote."
        ) from error
    try:
        head = msgspec.json.decode(data)
    except MALFORMED as error:
        raise TraceError(f"{file} is not JSON ({shown(error)}). Record the run again.") from error
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise TraceError(
            f"{path} is not a trace: {file.name} does not say `format: {FORMAT}`. "
            "It belongs to something else; choose another directory."
        )
    schema = head.get("schema")
    if schema != SCHEMA_VERSION:
        said = shown(schema, 40) if isinstance(schema, int | str) else "(not a number)"
        raise TraceError(
            f"{file} has schema version {said}, and this pytest-trainsafe reads "
            f"version {SCHEMA_VERSION}. Record the run again, or use the release that wrote it."
        )
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except MALFORMED as error:
        raise TraceError(f"{file} is damaged: {shown(error)}. Record the run again.") from error
    if manifest.dtype not in DTYPES:
        said = shown(repr(manifest.dtype), 40)
        raise TraceError(f"{file} is damaged: there is no dtype {said}. Record the run again.")
    return manifest, manifest_hash(data)


def _point_of(path: Path, manifest: Manifest) -> Point:
    """The manifest's Point, whose mesh axes have sizes that make its world."""
    for axis in MESH_AXES:
        size = manifest.point.get(axis, 1)
        if type(size) is not int or not 1 <= size <= MOST_RANKS:
            raise TraceError(
                f"{path / 'manifest.json'} is damaged: the size of {axis} is "
                f"{shown(repr(size), 40)}, not a number from 1 to {MOST_RANKS}. "
                "Record the run again."
            )
    point = Point.of(manifest.point)
    if point.world_size != manifest.world_size:
        raise TraceError(
            f"{path / 'manifest.json'} contradicts itself: {shown(point)} is a world of "
            f"{point.world_size} ranks, and world_size is {manifest.world_size}. "
            "Record the run again."
        )
    return point


def _check_ranks(path: Path, manifest: Manifest) -> None:
    there = {int(m[1]) for p in path.iterdir() if (m := re.fullmatch(r"rank(\d+)", p.name))}
    if extra := sorted(there - set(range(manifest.world_size))):
        raise TraceError(
            f"{path} holds rank{extra[0]}, and its manifest says {manifest.world_size} ranks: "
            "two runs wrote to one directory. Record into an empty directory."
        )


def _read_rank(trace: Trace, rank: RankTrace, check: TensorCheck) -> RankTrace:
    """Fill `rank` up to the first fault; what is wrong goes to `trace.problems`."""
    file = trace.path / f"rank{rank.rank}" / "events.jsonl"
    fault = _read_events(file, trace.path, rank, check)
    faults = [] if fault is None else [fault]
    by_file: dict[str, list[TensorEvent]] = {}
    for event in rank.tensors.values():
        if event.file:
            by_file.setdefault(event.file, []).append(event)
    for name, events in by_file.items():
        try:
            _check_payload(trace._payload(rank.rank, name), events)
            if any(event.sketch >= 0 for event in events) and not fault:
                _require_sealed_sketches(rank, name)
        except (PayloadError, OSError) as error:
            faults.append(str(_damaged(file.parent / name, _reason(error))))
    rank.complete = not faults
    trace.problems += faults
    return rank


def _check_payload(payload: Payload, events: list[TensorEvent]) -> None:
    """Raise PayloadError unless the file has what events say of it; hashes are checked later."""
    held = payload.sketches((ROWS, COLUMNS))
    for event in events:
        if event.key:
            payload.require(event.key, DTYPES[event.dtype], event.shape)
        elif event.sketch >= held:
            raise PayloadError(f"{event.id} is sketch {event.sketch} of {held}")


def _require_sealed_sketches(rank: RankTrace, name: str) -> None:
    if name not in rank.sketches:
        raise PayloadError(f"the last event of rank {rank.rank} has no hash of its sketches")


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _read_events(file: Path, path: Path, rank: RankTrace, check: TensorCheck) -> str | None:
    try:
        descriptor = open_file(file, below=path, most=MOST_EVENTS)
    except OSError as error:
        return f"{file} cannot be read ({error.strerror}): rank {rank.rank} left no events"
    decoder = msgspec.json.Decoder(Event)
    before = xxhash.xxh3_128()
    number = 0
    with os.fdopen(descriptor, "rb") as lines:
        while line := lines.readline(MOST_LINE):
            number += 1
            if not line.endswith(b"\n"):
                if len(line) == MOST_LINE:
                    return f"{file} line {number} is longer than {MOST_LINE} bytes"
                return (
                    f"{file} is cut in the middle of line {number}: "
                    "the rank died or the disk filled"
                )
            try:
                event = decoder.decode(line)
            except MALFORMED as error:
                return f"{file} line {number} is damaged: {shown(error)}"
            if isinstance(event, End):
                if event.events != len(rank.events):
                    return f"{file} says {event.events} events and holds {len(rank.events)}"
                if lines.read(1):
                    return f"{file} goes on after its end (line {number})"
                if event != seal(before, event.events, event.sketches, event.manifest):
                    return f"{file} does not have its recorded hash: it was changed since"
                rank.sketches, rank.manifest = event.sketches, event.manifest
                return None
            if fault := _take(rank, event, check):
                return f"{file} line {number} is damaged: {shown(fault)}"
            before.update(line)
    return f"{file} has no end: rank {rank.rank} did not finish (it died, or is still running)"


def _take(rank: RankTrace, event: Event, check: TensorCheck) -> str | None:
    match event:
        case TensorEvent():
            if event.seq != len(rank.events):
                return f"event {len(rank.events)} is numbered {event.seq}: lines were lost"
            if event.file and not PAYLOAD_NAME.fullmatch(event.file):
                return f"{event.file!r} is not the name of a payload"
            if event.id in rank.tensors:
                return f"{event.id} was recorded twice"
            if fault := check.fault(event):
                return fault
            rank.tensors[event.id] = event
        case ModuleEvent():
            rank.modules[event.module] = event
        case InputEvent():
            rank.inputs.append(event)
        case StepEvent():
            rank.steps.append(event)
        case NoteEvent():
            if fault := fault_of_note(event):
                return fault
            rank.notes.append(event)
        case End():
            raise AssertionError(event)
        case _:
            if fault := fault_of_rng(event):
                return fault
            rank.rng.append(event)
    rank.events.append(event)
    return None


def _unlike_sealed(trace: Trace, digest: str) -> list[str]:
    """That the manifest is not the one which ranks sealed with their events, if so."""
    unlike = [rank.rank for rank in trace.ranks if rank.manifest not in (None, digest)]
    if not unlike:
        return []
    file = trace.path / "manifest.json"
    told = f"does not have the hash that rank {unlike[0]} recorded"
    return [f"{file} {told}: it was changed since, or the rank belongs to another run"]


def _too_large(trace: Trace, check: TensorCheck) -> list[str]:
    """Tensors that are declared much larger than all the parts that ranks recorded of them."""
    found = []
    for rank in trace.ranks:
        for id, event in rank.tensors.items():
            declared = check.extent(event)
            if declared <= FEW_ELEMENTS:
                continue
            held = sum(math.prod(other.shape) for _, other in trace.holders(id))
            if declared > held * MOST_TIMES * trace.manifest.world_size:
                file = trace.path / f"rank{rank.rank}" / "events.jsonl"
                found.append(
                    f"{file} is damaged: {shown(id)} is declared to have {declared} elements, "
                    f"and its parts have {held}"
                )
    return found
