"""Records a small trace with several kinds of events, and damages, replaces or forges its files."""

from __future__ import annotations

import copy
import os
import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import torch
import xxhash

from pytest_trainsafe.core.layout import Shard, Slices
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.trace.facts import Annotations, Cast
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.run_spec import RunSpec
from pytest_trainsafe.trace.schema import (
    InputEvent,
    ModuleEvent,
    StepEvent,
    end_event,
    manifest_hash,
)
from pytest_trainsafe.trace.tensors.sketch import Sketcher
from pytest_trainsafe.trace.tensors.snapshot import as_bytes
from pytest_trainsafe.trace.writer import RankWriter, manifest_of, write_manifest

SIZES = {"tp": 2, "cp": 1, "dp": 1, "pp": 1}
WEIGHT = TensorId(0, None, "param", "layer", "weight")
SKETCHED = TensorId(0, 0, "activation", "layer", "output")
SLICED = TensorId(0, None, "main_grad", "layer", "bias")

MANIFEST, EVENTS, PAYLOAD = "manifest.json", "rank1/events.jsonl", "rank1/payload-00000.safetensors"
FILES = (MANIFEST, "rank0/events.jsonl", "rank0/payload-00000.safetensors", EVENTS, PAYLOAD)


def record(path: Path) -> Path:
    """Record a trace of two ranks."""
    write_manifest(
        path,
        manifest_of(RunSpec(program="p", axes=(("tp", 2),), dtype="float32"), "cpu"),
    )
    for rank in range(2):
        writer = RankWriter(path, rank, Sketcher({**dict.fromkeys(SIZES, 0), "tp": rank}, SIZES))
        writer.add(ModuleEvent("layer", "Linear", "model.py:3", ("weight",)))
        writer.add(Annotations("", "zigzag"))
        writer.add(Cast("float32", "model.py:3"))
        writer.add(InputEvent(0, 0, ("ab",)))
        writer.add_tensor(WEIGHT, torch.arange(8.0) + rank, (Shard(0, "tp"),))
        writer.add_tensor(SKETCHED, torch.arange(600.0).view(2, 300) + rank, (Shard(0, "tp"),))
        part = Slices.rectangle((2 * rank,), (2,), (4,), ("tp",))
        writer.add_tensor(SLICED, torch.ones(2), (part,))
        writer.add(StepEvent(0, 1, "x", "y", True, 0.5))
        writer.close()
    return path


def with_changes(manifest: dict[str, Any], **changes: object) -> dict[str, Any]:
    """A manifest with changed fields, its own or its spec's; `point` may be a dict of axes."""
    point = changes.pop("point", None)
    if point is not None:
        changes["axes"] = list(point.items()) if isinstance(point, dict) else point
    own = {key: value for key, value in changes.items() if key in manifest}
    spec = {key: value for key, value in changes.items() if key not in manifest}
    return {**manifest, **own, "spec": {**manifest["spec"], **spec}}


def content(path: Path) -> object:
    """All that a judge reads from a trace: manifest, events, values and sketches."""
    trace = Trace.open(path)
    found: list[object] = [trace.manifest]
    for rank in trace.ranks:
        found += rank.events
        for event in rank.tensors.values():
            if event.key:
                found.append(as_bytes(trace.load(rank.rank, event)).tolist())
            else:
                found.append(trace.sketch(rank.rank, event).tolist())
    return found


def lines(path: Path, rank: int = 1) -> list[dict[str, Any]]:
    """A rank's events without its End, as plain data."""
    data = (path / f"rank{rank}/events.jsonl").read_bytes()
    return [msgspec.json.decode(line) for line in data.splitlines()[:-1]]


def forge(path: Path, events: list[Any], rank: int = 1) -> None:
    """Write a rank's events, and an End with their number and hash."""
    file = path / f"rank{rank}/events.jsonl"
    end = msgspec.json.decode(file.read_bytes().splitlines()[-1])
    written = b"".join(msgspec.json.encode(event) + b"\n" for event in events)
    manifest = manifest_hash((path / MANIFEST).read_bytes())
    made = end_event(xxhash.xxh3_128(written), len(events), end["sketches"], manifest)
    file.write_bytes(written + msgspec.json.encode(made) + b"\n")


def forge_manifest(path: Path, manifest: object) -> None:
    """Write a manifest, and its hash into the End of each rank."""
    (path / MANIFEST).write_bytes(msgspec.json.encode(manifest))
    for rank in range(2):
        forge(path, lines(path, rank), rank)


def places(value: object) -> list[tuple[Any, ...]]:
    """The path of every value in nested plain data."""
    found: list[tuple[Any, ...]] = [()]
    items: Iterable[tuple[Any, Any]] = value.items() if isinstance(value, dict) else ()
    items = enumerate(value) if isinstance(value, list) else items
    for key, inner in items:
        found += [(key, *rest) for rest in places(inner)]
    return found


def exchanged(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    """A copy of nested plain data with `new` as the value at `place`."""
    if not place:
        return new
    changed = copy.deepcopy(value)
    inner = changed
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = new
    return changed


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        folder = os.open(path.parent, os.O_PATH)  # a socket's name has at most 107 characters
        made.bind(f"/proc/self/fd/{folder}/{path.name}")
        os.close(folder)


def _outside(path: Path) -> None:
    elsewhere = path.parents[2] / f"elsewhere-{path.name}"
    path.rename(elsewhere) if path.exists() else elsewhere.touch()
    path.symlink_to(elsewhere)


#: Makes something other than a regular file at a path; the keys are the words of the messages.
REPLACEMENTS: dict[str, Callable[[Path], None]] = {
    "a pipe": os.mkfifo,
    "a socket": _socket,
    "a folder": Path.mkdir,
    "a symbolic link": lambda path: path.symlink_to("/dev/zero"),
}
if os.geteuid() == 0:
    REPLACEMENTS["a device"] = lambda path: os.mknod(path, 0o20666, os.makedev(1, 5))
