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
from typing import Annotated, Literal

import msgspec
import xxhash

from pytest_trainsafe.align.layout import REPLICATED, Count, Layout

SCHEMA_VERSION = 5

Kind = Literal[
    "input",  # what the program gives its model
    "activation",
    "activation_grad",
    "decision",  # what a module chose ("output") and by which "scores"
    "buffer",
    "param",
    "param_grad",
    "unclipped_grad",  # the main gradient, before the program clipped it
    "main_grad",
    "master_param",
    "optimizer_state",
    "loss",
    "grad_norm",
    "update",  # derived, never recorded: a parameter after the step minus before it
]

#: The step number under which the values before the first step are recorded.
INITIAL = -1

#: The name of the norm by which a step's gradients are clipped, a tensor of kind `grad_norm`.
CLIP_NORM = "clip_norm"

#: A micro-batch's number, which the program chooses.
Number = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]

#: A step's number, or INITIAL; a place in a file, or -1 for none.
Step = Annotated[int, msgspec.Meta(ge=INITIAL, le=2**48)]
Place = Annotated[int, msgspec.Meta(ge=-1, le=2**48)]


class TensorId(msgspec.Struct, frozen=True, order=True):
    """`step / microbatch / kind / module / name`: the layout-free name of a logical tensor.

    `microbatch` is None for what belongs to the whole step (main gradients, parameters).
    `module` is the path in the root module's names, "" for the root itself.
    `name` is the parameter, buffer or state name ("weight", "weight.exp_avg"), or the position in
    the module's output ("output", "output.0", "output.logits") or in the model's arguments
    ("input.0", "input.tokens").  A `grad_norm` is what the program reports ("grad_norm"), or the
    norm by which it clips ("clip_norm").  A buffer with a micro-batch is as its forward left it.
    `call` counts the calls of the same module within one microbatch.
    """

    step: Step
    microbatch: Number | None
    kind: Kind
    module: str
    name: str
    call: Count = 0

    @property
    def path(self) -> str:
        """Module and name joined: `layers.0.mlp.fc1.weight`."""
        return f"{self.module}.{self.name}" if self.module else self.name

    def __str__(self) -> str:
        when = f"step {self.step}" if self.step != INITIAL else "before the first step"
        if self.microbatch is not None:
            when += f" · micro-batch {self.microbatch}"
        if self.call:
            when += f" · call {self.call}"
        return f"{self.path} · {self.kind} · {when}"


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

Event = TensorEvent | ModuleEvent | InputEvent | StepEvent | NoteEvent | End


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
