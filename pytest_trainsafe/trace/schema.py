"""The schema of a Trace: what one Run recorded, as data.

A trace is a directory:

    manifest.json                 one Manifest: what ran, where, and the schema version
    rank0/events.jsonl            one Event a line, appended as things happen
    rank0/payload-00000.safetensors   the tensors, and in the entry "sketches" those of tensors
                                  whose values were not kept; written whole before the events
                                  that name them

Events are readable after a crash: a payload is complete before its events are appended, and
the last event of a complete rank is an `End`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from pytest_trainsafe.align.layout import REPLICATED, Layout

SCHEMA_VERSION = 3

Kind = Literal[
    "activation",
    "activation_grad",
    "decision",  # what a module chose ("output") and by which "scores"
    "param",
    "param_grad",
    "main_grad",
    "master_param",
    "optimizer_state",
    "loss",
    "grad_norm",
    "update",  # derived, never recorded: a parameter after the step minus before it
]

#: The step number under which the values before the first step are recorded.
INITIAL = -1


class TensorId(msgspec.Struct, frozen=True, order=True):
    """`step / microbatch / kind / module / name`: the layout-free name of a logical tensor.

    `microbatch` is None for what belongs to the whole step (main gradients, parameters).
    `module` is the path in the root module's names, "" for the root itself.
    `name` is the parameter or state name ("weight", "weight.exp_avg"), or the position in the
    module's output ("output", "output.0", "output.logits").
    `call` counts the calls of the same module within one microbatch.
    """

    step: int
    microbatch: int | None
    kind: Kind
    module: str
    name: str
    call: int = 0

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

    seq: int
    id: TensorId
    dtype: str
    shape: tuple[int, ...]
    hash: str
    layout: Layout = REPLICATED
    layout_source: str = "default"
    file: str = ""
    key: str = ""
    sketch: int = -1
    logical: tuple[int, ...] = ()
    master_copy: bool = False


class ModuleEvent(msgspec.Struct, frozen=True, tag="module", omit_defaults=True):
    """A module of the watched model: its class and where the class is defined."""

    module: str
    cls: str
    source: str
    parameters: tuple[str, ...] = ()


class InputEvent(msgspec.Struct, frozen=True, tag="input"):
    """The exact hashes of the root module's input tensors at one microbatch."""

    step: int
    microbatch: int
    hashes: tuple[str, ...]


class StepEvent(msgspec.Struct, frozen=True, tag="step", omit_defaults=True):
    """A step ended.  `rng_before` and `rng_after` are hashes of the default generators' state."""

    step: int
    microbatches: int
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
    "local": by kind and path, what has no logical counterpart at the Point; "reduction": a
    collective that may reduce gradients, over which axes, and its line.
    """

    key: str
    value: str


class End(msgspec.Struct, frozen=True, tag="end"):
    """The rank finished its program.

    `events` counts the events before this one; `hash` is that of their lines, and `sketches`
    has those of the sketches of each file: a tensor's own hash does not cover its sketch.
    """

    events: int
    hash: str
    sketches: dict[str, str]


Event = TensorEvent | ModuleEvent | InputEvent | StepEvent | NoteEvent | End


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What ran.  `format` and `schema` come first so that a foreign file is named as one."""

    format: str = "pytest-trainsafe trace"
    schema: int = SCHEMA_VERSION
    program: str
    point: dict[str, int | bool | str]
    arguments: str = "{}"
    world_size: int
    dtype: str
    device: str
    seed: int
    perturbation: float = 0.0
    versions: dict[str, str] = {}
