"""Opens and reads a Trace, and reports why one is incomplete or damaged.

Called by align and the judges.  Events are read when the trace is opened, tensors on demand.
"""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar, cast

import msgspec
import torch
import xxhash

from pytest_trainsafe.core.mesh import OverMesh
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.rungs.arithmetic import Arithmetic
from pytest_trainsafe.core.rungs.floating import arithmetic_of
from pytest_trainsafe.core.rungs.table import rung_named
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.core.untrusted import MALFORMED, open_file, shown
from pytest_trainsafe.errors import TraceError as TraceError  # also imported from here
from pytest_trainsafe.trace.check import (
    DTYPES,
    FEW_ELEMENTS,
    MAX_TIMES,
    TensorCheck,
)
from pytest_trainsafe.trace.events import decoder, fault_of
from pytest_trainsafe.trace.manifest import point_of, read_manifest
from pytest_trainsafe.trace.schema import (
    End,
    InputEvent,
    Manifest,
    ModuleEvent,
    NoteEvent,
    NoteKey,
    StepEvent,
    TensorEvent,
    end_event,
)
from pytest_trainsafe.trace.stand_ins import stand_ins
from pytest_trainsafe.trace.tensors.payload import Payload, PayloadError
from pytest_trainsafe.trace.tensors.sketch import COLUMNS, ROWS, Values

#: Payload files that stay mapped, per rank.  A rank has one per step, or one per 16 MiB of it.
MAPPED = 3

PAYLOAD_NAME = re.compile(r"payload-\d{5,12}\.safetensors", re.ASCII)

#: Maximum bytes of a rank's events (some millions), and of one event.  The longest event is an End,
#: with a hash for each payload file.
MAX_EVENTS, MAX_LINE = 2**31, 2**24

#: Kinds of tensors that flow between modules.
_FLOWS = frozenset({"activation", "activation_grad"})

#: Maximum number of problems that a message lists.
MAX_LISTED = 20


_Fact = TypeVar("_Fact", bound=msgspec.Struct)


@dataclass(slots=True)
class RankTrace:
    """What one rank recorded.  `tensors` is in the order of dataflow.

    `sketches` has the hash of the sketches in each file, and `manifest` the hash of the trace's
    manifest; both are known only for a rank that finished.
    """

    rank: int
    coordinates: OverMesh
    events: list[msgspec.Struct] = field(default_factory=list)
    tensors: dict[TensorId, TensorEvent] = field(default_factory=dict)
    modules: dict[str, ModuleEvent] = field(default_factory=dict)
    inputs: list[InputEvent] = field(default_factory=list)
    steps: list[StepEvent] = field(default_factory=list)
    facts: dict[type[msgspec.Struct], list[msgspec.Struct]] = field(default_factory=dict)
    sketches: dict[str, str] = field(default_factory=dict)
    manifest: str | None = None
    complete: bool = False

    def note(self, key: NoteKey) -> list[str]:
        """The values noted under `key`, in order."""
        return [event.value for event in self.events_of(NoteEvent) if event.key == key]

    def events_of(self, kind: type[_Fact]) -> list[_Fact]:
        """The events of one type, in order; empty for tensors, modules, inputs and steps."""
        return cast(list[_Fact], self.facts.get(kind, []))


@dataclass(slots=True)
class Trace:
    """A recorded Run.  `problems` lists what is missing; it is empty for a complete trace.

    `point` is the Run's Point and `sizes` the size of each of its mesh axes.  `serial` is unique
    among the open traces of this process; caches use it as a key.
    `permuted` maps the module and key path of an output to the permutation that restores the
    logical order of its dimensions.  It has the outputs for which a judge inferred a permutation.
    `renumbered` names the modules whose calls got other numbers than those that the ranks recorded
    (`align/calls.py`).
    """

    path: Path
    manifest: Manifest
    ranks: list[RankTrace]
    problems: list[str] = field(default_factory=list)
    permuted: dict[tuple[str, str], tuple[int, ...]] = field(default_factory=dict)
    renumbered: frozenset[str] = frozenset()
    point: Point = field(init=False)
    sizes: OverMesh = field(init=False)
    serial: int = field(init=False, default_factory=itertools.count().__next__, compare=False)
    _holders: dict[TensorId, list[tuple[RankTrace, TensorEvent]]] = field(
        default_factory=dict, repr=False
    )
    _payloads: dict[tuple[int, str], Payload] = field(default_factory=dict, repr=False)
    _sketches: dict[tuple[int, str], Values] = field(default_factory=dict, repr=False)
    _numbers: Arithmetic | None = field(init=False, default=None, repr=False, compare=False)
    _sketched: frozenset[TensorId] | None = field(
        init=False, default=None, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        self.point = self.manifest.point
        self.sizes = self.point.sizes

    @classmethod
    def open(
        cls, path: Path | str, allow_incomplete: bool = False, only: int | None = None
    ) -> Trace:
        """Opens the trace directory `path`.

        Raises TraceError for a directory that is not a trace, for another schema version, and for
        an incomplete trace.  `allow_incomplete` reads what was written before a crash instead,
        and keeps the reasons in `problems`.  `only` is the one rank whose part is read; the parts
        of the others are then empty.
        """
        path = Path(path)
        manifest, digest = read_manifest(path)
        point = point_of(path, manifest)
        _check_ranks(path, manifest)
        trace = cls(path, manifest, [])
        check = TensorCheck(trace.sizes)
        for rank in range(manifest.world_size):
            part = RankTrace(rank, point.coordinates(rank))
            trace.ranks.append(part if only not in (None, rank) else _read_rank(trace, part, check))
        trace.problems += _changed_manifest(trace, digest)
        if only is None:  # the size of a tensor is checked against all of its parts
            trace.problems += _too_large(trace, check)
        if not allow_incomplete:
            trace.require_complete()
        return trace

    @property
    def complete(self) -> bool:
        """Whether every rank finished its program and the trace has everything that it recorded."""
        return not self.problems

    def require_complete(self) -> None:
        """Raises TraceError unless the trace is complete."""
        if self.problems:
            listed = "\n  ".join(self.problems[:MAX_LISTED])
            if len(self.problems) > MAX_LISTED:
                listed += f"\n  and {len(self.problems) - MAX_LISTED} more"
            raise TraceError(
                f"the trace {self.path} is not complete:\n  {listed}\n"
                "Record it again, or open the incomplete trace with allow_incomplete=True."
            )

    def holders(self, id: TensorId) -> list[tuple[RankTrace, TensorEvent]]:
        """The ranks that recorded `id`, with their events, in rank order.

        A pipeline stage that only has a placeholder for the module, such as `nn.Identity`, is
        excluded.
        """
        return (self._holders or self._held_by()).get(id, [])

    @property
    def sketched(self) -> frozenset[TensorId]:
        """The ids of which a rank kept no values, but at most a sketch (random projections)."""
        if self._sketched is None:
            held = self._held_by().items()
            self._sketched = frozenset(
                id for id, ranks in held if not all(event.key for _, event in ranks)
            )
        return self._sketched

    def ids(self) -> Iterator[TensorId]:
        """Every tensor id once, rank by rank, in the order of dataflow within each rank."""
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
        """By pipeline stage, the modules that are placeholders for modules of another stage."""
        if self.sizes["pp"] == 1:
            return {}
        stages: dict[int, dict[str, ModuleEvent]] = {}
        for rank in self.ranks:
            stages.setdefault(rank.coordinates["pp"], {}).update(rank.modules)
        return stand_ins(stages)

    def with_ranks(self, ranks: list[RankTrace]) -> Trace:
        """A Trace of the same Run with these ranks; tensors are read from the same files."""
        return Trace(self.path, self.manifest, ranks)

    @property
    def numbers(self) -> Arithmetic:
        """The arithmetic of the rung at which the Run was recorded."""
        if self._numbers is None:  # each look-up imports the arithmetic of a rung by its path
            self._numbers = rung_named(self.manifest.dtype).arithmetic
        return self._numbers

    def load(self, rank: int, event: TensorEvent) -> torch.Tensor:
        """The tensor of one rank's event, on the CPU, checked against its hash.

        Raises TraceError if the payload was not kept, is missing, or is damaged.
        """
        if not event.key:
            raise TraceError(
                f"{event.id}: rank {rank} kept only a sketch (random projections) of the values. "
                "Record the run with --trainsafe-record full."
            )
        try:
            payload, stored = self._payload(rank, event.file), event.stored
            held = payload.load(event.key, DTYPES[stored.dtype], stored.shape, event.hash)
            return self._decoded(event, held)
        except (PayloadError, OSError) as error:
            path = self.path / f"rank{rank}" / event.file
            raise _damaged(path, f"{event.id}: {_reason(error)}") from error

    def _decoded(self, event: TensorEvent, stored: torch.Tensor) -> torch.Tensor:
        """The values of an event.  Raises PayloadError if they are not what the event declares."""
        dtype = DTYPES[event.dtype]
        try:
            found = arithmetic_of(dtype, self.numbers).decode(stored, event.shape)
        except (RuntimeError, TypeError, ValueError) as error:
            raise PayloadError(f"its stored values cannot be decoded ({error})") from error
        if (found.dtype, tuple(found.shape)) != (dtype, event.shape):
            raise PayloadError(
                f"its stored values are a {found.dtype} tensor of shape {list(found.shape)}, not "
                f"a {dtype} tensor of shape {list(event.shape)}"
            )
        return found

    def sketch(self, rank: int, event: TensorEvent) -> Values:
        """The sketch of one rank's tensor, of shape [8, 16] in float64; the event must have one.

        Raises TraceError if the sketch is missing or damaged.
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
        self._payloads[rank, name] = found  # most recently used last
        return found


def _damaged(path: Path, reason: str) -> TraceError:
    return TraceError(f"{path} is missing or damaged: {shown(reason)}. Record the run again.")


def _check_ranks(path: Path, manifest: Manifest) -> None:
    there = {int(m[1]) for p in path.iterdir() if (m := re.fullmatch(r"rank(\d+)", p.name))}
    if extra := sorted(there - set(range(manifest.world_size))):
        raise TraceError(
            f"{path} contains rank{extra[0]}, but its manifest says {manifest.world_size} ranks: "
            "two runs wrote to this directory. Record into an empty directory."
        )


def _read_rank(trace: Trace, rank: RankTrace, check: TensorCheck) -> RankTrace:
    """Fills `rank` up to the first fault; faults go to `trace.problems`."""
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
                _require_hashed_sketches(rank, name)
        except (PayloadError, OSError) as error:
            faults.append(str(_damaged(file.parent / name, _reason(error))))
    rank.complete = not faults
    trace.problems += faults
    return rank


def _check_payload(payload: Payload, events: list[TensorEvent]) -> None:
    """Raises PayloadError unless the file has all tensors of the events; compares no hashes."""
    held = payload.sketches((ROWS, COLUMNS))
    for event in events:
        if event.key:
            payload.require(event.key, DTYPES[event.stored.dtype], event.stored.shape)
        elif event.sketch >= held:
            raise PayloadError(
                f"{event.id} refers to sketch {event.sketch} (counted from 0), but the file has "
                f"{held} sketches"
            )


def _require_hashed_sketches(rank: RankTrace, name: str) -> None:
    if name not in rank.sketches:
        raise PayloadError(
            f"the last event of rank {rank.rank} has no hash of the sketches in this file"
        )


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _read_events(file: Path, path: Path, rank: RankTrace, check: TensorCheck) -> str | None:
    try:
        descriptor = open_file(file, below=path, max_bytes=MAX_EVENTS)
    except OSError as error:
        return f"{file} cannot be read ({error.strerror}): there are no events of rank {rank.rank}"
    events = decoder()
    before = xxhash.xxh3_128()
    number = 0
    with os.fdopen(descriptor, "rb") as lines:
        while line := lines.readline(MAX_LINE):
            number += 1
            if not line.endswith(b"\n"):
                if len(line) == MAX_LINE:
                    return f"{file} line {number} is longer than {MAX_LINE} bytes"
                return (
                    f"{file} is cut in the middle of line {number}: "
                    "the rank died or the disk filled"
                )
            try:
                event = events.decode(line)
            except MALFORMED as error:
                return f"{file} line {number} is damaged: {shown(error)}"
            if isinstance(event, End):
                if event.events != len(rank.events):
                    return f"{file} has {len(rank.events)} events, but declares {event.events}"
                if lines.read(1):
                    return f"{file} has more lines after its End event (line {number})"
                if event != end_event(before, event.events, event.sketches, event.manifest):
                    return f"{file} does not have its recorded hash: it was changed since"
                rank.sketches, rank.manifest = event.sketches, event.manifest
                return None
            if fault := _take(rank, event, check):
                return f"{file} line {number} is damaged: {shown(fault)}"
            before.update(line)
    return (
        f"{file} has no End event: rank {rank.rank} did not finish (it died, or is still running)"
    )


def _take(rank: RankTrace, event: msgspec.Struct, check: TensorCheck) -> str | None:
    match event:
        case TensorEvent():
            if event.seq != len(rank.events):
                return f"event {len(rank.events)} is numbered {event.seq}: lines were lost"
            if event.file and not PAYLOAD_NAME.fullmatch(event.file):
                return f"{event.file!r} is not the name of a payload file"
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
        case _:
            if fault := fault_of(event):
                return f"the event {event.__struct_config__.tag!r} is malformed: {fault}"
            rank.facts.setdefault(type(event), []).append(event)
    rank.events.append(event)
    return None


def _changed_manifest(trace: Trace, digest: str) -> list[str]:
    """A problem if the manifest is not the one that the ranks' End events refer to."""
    unlike = [rank.rank for rank in trace.ranks if rank.manifest not in (None, digest)]
    if not unlike:
        return []
    file = trace.path / "manifest.json"
    recorded = f"the hash that rank {unlike[0]} recorded"
    return [f"{file} does not have {recorded}: it was changed, or the rank is from another run"]


def _too_large(trace: Trace, check: TensorCheck) -> list[str]:
    """A problem for each tensor that declares many more elements than its recorded parts have."""
    found = []
    for rank in trace.ranks:
        for id, event in rank.tensors.items():
            declared = check.extent(event)
            if declared <= FEW_ELEMENTS:
                continue
            held = sum(math.prod(other.shape) for _, other in trace.holders(id))
            if declared > held * MAX_TIMES * trace.manifest.world_size:
                file = trace.path / f"rank{rank.rank}" / "events.jsonl"
                found.append(
                    f"{file} is damaged: {shown(id)} is declared to have {declared} elements, "
                    f"but its parts have {held}"
                )
    return found
