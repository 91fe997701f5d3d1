"""The schema of a Trace: what one Run recorded, as data.

A trace is a directory:

    manifest.json                 one Manifest: what ran, where, and the schema version
    rank0/events.jsonl            one Event per line, appended in order
    rank0/payload-00000.safetensors   tensors, and in the entry "sketches" the sketches of
                                  tensors whose values were not kept; complete before the events
                                  that refer to it
    rank0/observed.bin            calls and changes of state, if the Run observes any
                                  (`judges/learn/events/file.py`)

Events are readable after a crash: a payload is complete before its events are appended, and
the last event of a complete rank is an `End`.

Hashes cover everything that a verdict depends on: a tensor's event has the hash of its bytes, and
each rank's End, which is written last, has the hash of all events, sketches and the manifest.
They detect damage and mix-ups.  They are not a signature: whoever can write to the folder can
compute them again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
import xxhash

from pytest_trainsafe.core.layout import REPLICATED, Count, Layout
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.prepared import prepared
from pytest_trainsafe.core.tensor_id import FileIndex, Number, Step, TensorId
from pytest_trainsafe.trace.run_spec import RunSpec

SCHEMA_VERSION = 10


class Stored(msgspec.Struct, frozen=True, array_like=True):
    """The dtype and shape in which a rung stores numbers, if these are not the tensor's own."""

    dtype: str
    shape: tuple[Count, ...]


class TensorEvent(msgspec.Struct, frozen=True, tag="tensor", omit_defaults=True, gc=False):
    """One recorded tensor of one rank.

    `seq` counts the rank's events, in order of dataflow.
    `layout_source` says where the layout came from: "dtensor", "attribute", the annotation
    pattern as written ("modules: linear_qkv"), or "default".
    `file` and `key` locate the values; `key` is empty if the values were not kept.  Then `sketch`
    is the index of their sketch (random projections) in the file, and `logical` is the logical
    shape that the rank derived.
    `hash` is xxh3_128 of the contiguous bytes that are stored, hexadecimal.
    `master_copy` is true for a parameter whose value is its master copy, rounded to its dtype.
    `encoded` says how the rung stores the values; None in the tensor's own dtype and shape.
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
    sketch: FileIndex = -1
    logical: tuple[Count, ...] = ()
    master_copy: bool = False
    encoded: Stored | None = None

    @property
    def stored(self) -> Stored:
        """The dtype and shape of the stored tensor."""
        return self.encoded or Stored(self.dtype, self.shape)


class ModuleEvent(msgspec.Struct, frozen=True, tag="module", omit_defaults=True):
    """A module of the watched model: its class and where the class is defined.

    `forward` is the "file:line" of the function that runs instead of the class's own `forward`,
    because other code has assigned it to the instance or to the class; "" if there is none.
    `functions` has the other functions that the instance has as attributes and that are defined in
    other files than the class: the name of the attribute and the "file:line".
    """

    module: str
    cls: str
    source: str
    parameters: tuple[str, ...] = ()
    forward: str = ""
    functions: tuple[tuple[str, str], ...] = ()


class InputEvent(msgspec.Struct, frozen=True, tag="input", omit_defaults=True):
    """The exact hashes of the root module's input tensors in one micro-batch.

    If the values of the tensors are not recorded, `measures` has the norm and one projection of
    each tensor of real numbers, and None for any other tensor.
    """

    step: Step
    microbatch: Number
    hashes: tuple[str, ...]
    measures: tuple[tuple[float, float] | None, ...] = ()


class StepEvent(msgspec.Struct, frozen=True, tag="step", omit_defaults=True):
    """The end of a step.  `rng_before` and `rng_after` hash the default generators' state."""

    step: Step
    microbatches: Count
    rng_before: str
    rng_after: str
    optimizer_stepped: bool
    seconds: float


NoteKey = Literal[
    "read_axis",
    "autocast",
    "averages",
    "clip_limit",
    "clipped",
    "compiled",
    "dropout",
    "generated",
    "kept",
    "left",
    "level",
    "local",
    "ran",
    "reduces_in",
    "skipped",
    "unmatched_annotation",
    "unmatched_pattern",
    "not_compared",
    "unused_annotation",
    "used",
]


class NoteEvent(msgspec.Struct, frozen=True, tag="note"):
    """A fact of one word or sentence, by key.

    read_axis             an axis or argument that the program read
    autocast              the dtype of an autocast region
    averages              the wrapper that averages gradients over dp
    clip_limit            the largest norm that the program leaves as it is when it clips
    clipped               the function by which the program clips gradients
    compiled              a module inside a compiled region, where it is not recorded
    dropout               the rate of a dropout that is on
    generated             the step and path of a main gradient that was replaced before the
                          optimizer used it
    kept                  those of one that was not replaced, although this rank's optimizer uses it
    left                  "gradients" if the program leaves gradients behind its last step
    level                 "step" if the program marks no micro-batches
    local                 the kind and path of an output without a logical counterpart at the Point
    ran                   an axis that took effect on the rank: "recompute" (a backward ran a
                          forward again) or "compile" (a region was compiled)
    reduces_in            the dtype in which a framework is configured to reduce gradients
    skipped               a step in which the optimizer did nothing, and why
    unmatched_annotation  an annotation pattern that matches nothing
    unmatched_pattern     a pattern of modules to record that matches none on this rank
    not_compared          a sentence on something in the program that the trace does not have
    unused_annotation     an annotation that contradicts a stronger source of the layout
    used                  what the program used of its context: "dtype", "initialize", "mesh",
                          "microbatches", or "group" and an axis
    """

    key: NoteKey
    value: str


class End(msgspec.Struct, frozen=True, tag="end"):
    """The last event of a rank that finished its program; has a hash of its events.

    `events` counts the preceding events.  `sketches` has the hash of the sketches in each file,
    because a tensor's own hash does not cover its sketch.  `manifest` is the hash of
    manifest.json as the rank found it.  `hash` covers the preceding lines and the other fields.
    """

    events: Count
    hash: str
    sketches: dict[str, str]
    manifest: str


def manifest_hash(data: bytes) -> str:
    """The hash that an End holds for a manifest file's content `data`; "" for no manifest."""
    return xxhash.xxh3_128_hexdigest(data) if data else ""


def end_event(
    lines: xxhash.xxh3_128, events: int, sketches: Mapping[str, str], manifest: str
) -> End:
    """The End of a rank whose lines were hashed into `lines`; `lines` is not changed."""
    both = lines.copy()
    both.update(msgspec.json.encode((events, dict(sketches), manifest), order="deterministic"))
    return End(events, both.hexdigest(), dict(sketches), manifest)


#: Maximum number of ranks of a trace, and of bytes of a manifest.
MAX_RANKS = 2**14
MAX_MANIFEST = 2**20


@prepared
class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What ran: the Run, the device that it ran on ("cpu", "cuda"), and versions of the software.

    `format` and `schema` come first so that files of other kinds and versions are recognised.
    """

    format: str = "pytest-trainsafe trace"
    schema: int = SCHEMA_VERSION
    spec: RunSpec
    world_size: Annotated[int, msgspec.Meta(ge=1, le=MAX_RANKS)]
    device: str
    versions: dict[str, str] = {}

    @property
    def program(self) -> str:
        """The import path of the program, or the name of its script."""
        return self.spec.program

    @property
    def point(self) -> Point:
        """The Point that the program ran at."""
        return self.spec.point

    @property
    def dtype(self) -> str:
        """The dtype that the program ran in."""
        return self.spec.dtype
