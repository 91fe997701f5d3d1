"""The schema of a Trace: what one Run recorded, as data.

A trace is a directory:

    manifest.json                 one Manifest: what ran, where, and the schema version
    rank0/events.jsonl            one Event a line, appended as things happen
    rank0/payload-00000.safetensors   the tensors, and in the entry "sketches" those of tensors
                                  whose values were not kept; written whole before the events
                                  that name them

Events are readable after a crash: a payload is complete before its events are appended, and
the last event of a complete rank is an `End`.

What a verdict depends on is covered by hashes: a tensor's bytes by its event's, and all events,
sketches and the manifest by each rank's End, which is written last.  They show damage and
mix-ups.  They are no signature: who can write the folder can compute them again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec
import xxhash

from pytest_trainsafe.core.layout import REPLICATED, Count, Layout
from pytest_trainsafe.core.tensor_id import Number, Place, Step, TensorId
from pytest_trainsafe.trace.rng.events import RngEvent

SCHEMA_VERSION = 6


class TensorEvent(msgspec.Struct, frozen=True, tag="tensor", omit_defaults=True):
    """One recorded tensor of one rank.

    `seq` counts the rank's events: the order of dataflow.
    `layout_source` says where the layout came from: "dtensor", "attribute", the annotation
    pattern as written ("modules: linear_qkv"), or "default".
    `file` and `key` find the payload; `key` is empty when the values were not kept.  Then
    `sketch` is the place of their sketch in the file, and `logical` the logical shape that the
    rank took its part to be of.
    `hash` is xxh3_128 of the contiguous bytes, hexadecimal.
    `master_copy` says of a parameter that it equals its master copy, rounded to its dtype.
    """

    seq: Count
    id: TensorId
    dtype: str
    shape: tuple[Count, ...]
    hash: str
    layout: Layout = REPLICATED
    layout_source: str = "default"
    file: str = ""
    key: str = ""
    sketch: Place = -1
    logical: tuple[Count, ...] = ()
    master_copy: bool = False


class ModuleEvent(msgspec.Struct, frozen=True, tag="module", omit_defaults=True):
    """A module of the watched model: its class and where the class is defined.

    `forward` is the "file:line" of a forward that is set in place of the class's own.
    """

    module: str
    cls: str
    source: str
    parameters: tuple[str, ...] = ()
    forward: str = ""


class InputEvent(msgspec.Struct, frozen=True, tag="input"):
    """The exact hashes of the root module's input tensors at one microbatch."""

    step: Step
    microbatch: Number
    hashes: tuple[str, ...]


class StepEvent(msgspec.Struct, frozen=True, tag="step", omit_defaults=True):
    """A step ended.  `rng_before` and `rng_after` are hashes of the default generators' state."""

    step: Step
    microbatches: Count
    rng_before: str
    rng_after: str
    optimizer_stepped: bool
    seconds: float


class NoteEvent(msgspec.Struct, frozen=True, tag="note"):
    """A fact about the run, by key.

    "autocast", "dropout", "narrowed", "quantised", "unmatched_annotation", "unused_annotation",
    "unmatched_pattern": one of the modules to record that matches none on this rank;
    "annotations": their file and cp_order, as JSON; "unseen": what a program has and no tensor
    of the trace shows, in words; "skipped": a step that the optimizer was not given, and why;
    "local": by kind and path, what has no logical counterpart at the Point; "reduction" and
    "norm_reduction": a collective that may reduce gradients, or their norm, over which axes, and
    its line; "site": another line of the program (`trace/sites.py`); "evaluated": a module that
    ran in evaluation mode, and the line that put it there; "altered": the step, the micro-batch
    and the name of a module whose parameters were not those that the step began with; "clipped":
    the function by which the program clips gradients; "averages": the wrapper that is taken to
    average them; "reduces_in": the dtype in which a framework is configured to reduce them;
    "compiled": a module that ran inside a compiled region, where it is not recorded; "ran": an
    axis of which this rank had the consequence, "recompute" (a backward ran a forward) or
    "compile" (a region); "level":
    "step", where the program marks no micro-batches.
    """

    key: str
    value: str


class End(msgspec.Struct, frozen=True, tag="end"):
    """The rank finished its program.  This event seals what the rank recorded, and the manifest.

    `events` counts the events before this one.  `sketches` has the hashes of the sketches of each
    file: a tensor's own hash does not cover its sketch.  `manifest` is the hash of manifest.json
    as the rank found it.  `hash` covers the lines before this one and both of these.
    """

    events: Count
    hash: str
    sketches: dict[str, str]
    manifest: str


def manifest_hash(data: bytes) -> str:
    """The hash by which an End knows the manifest whose file holds `data`; "" for no manifest."""
    return xxhash.xxh3_128_hexdigest(data) if data else ""


def seal(lines: xxhash.xxh3_128, events: int, sketches: Mapping[str, str], manifest: str) -> End:
    """The End of a rank whose lines have been hashed into `lines`, which is left as it is."""
    both = lines.copy()
    both.update(msgspec.json.encode((events, dict(sketches), manifest), order="deterministic"))
    return End(events, both.hexdigest(), dict(sketches), manifest)


#: Most ranks of a trace, and most bytes of a manifest.
MOST_RANKS = 2**14
MOST_MANIFEST = 2**20

Event = TensorEvent | ModuleEvent | InputEvent | StepEvent | NoteEvent | RngEvent | End


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What ran.  `format` and `schema` come first so that a foreign file is named as one."""

    format: str = "pytest-trainsafe trace"
    schema: int = SCHEMA_VERSION
    program: str
    point: dict[str, int | bool | str]
    arguments: str = "{}"
    world_size: Annotated[int, msgspec.Meta(ge=1, le=MOST_RANKS)]
    dtype: str
    device: str
    seed: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
    perturbation: float = 0.0
    versions: dict[str, str] = {}
