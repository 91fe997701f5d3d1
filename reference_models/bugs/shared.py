"""Faults that a reference and a candidate share: `masked.train(..., fault=name)` plants one.

What a comparison of the two says depends on how micro-batches are divided: it passes with more than
half of them.  An entry names the metamorphic relation that finds the fault, and the first tensor
that differs under it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_trainsafe.core.tensor_id import Kind


@dataclass(frozen=True, slots=True)
class SharedFault:
    """One fault: what goes wrong, the relation that finds it, and where it shows first.

    `point` and `arguments` are those of the Run in which it shows; `where` is the path of the first
    wrong tensor, of kind `kind`.
    """

    name: str
    what: str
    relation: str
    kind: Kind
    where: str
    arguments: Mapping[str, object] = field(default_factory=dict)
    point: Mapping[str, int] = field(default_factory=dict)


FAULTS = (
    SharedFault(
        name="loss-per-microbatch",
        what="The loss is the mean over the tokens of a micro-batch, divided by the number of "
        "micro-batches, although sequences have unequal lengths.",
        relation="split",
        kind="loss",
        where="loss",
    ),
    SharedFault(
        name="auxiliary-loss-per-sample",
        what="The z-loss, a mean over tokens already, is divided by the batch size as well.",
        relation="split",
        kind="loss",
        where="loss",
    ),
    SharedFault(
        name="z-loss-counts-padding",
        what="The z-loss is summed over all entries, padded ones too.",
        relation="padding",
        kind="loss",
        where="loss",
    ),
    SharedFault(
        name="z-loss-counts-unused-ids",
        what="The normaliser in the z-loss is that of all logits, those of unused ids too.",
        relation="vocabulary",
        kind="loss",
        where="loss",
    ),
    SharedFault(
        name="clip-before-unscale",
        what="Gradients are clipped while they still have the loss scale.",
        relation="loss-scale",
        kind="unclipped_grad",
        where="embedding.weight",
    ),
    SharedFault(
        name="clip-per-microbatch",
        what="The accumulated gradient is clipped after the backward of each micro-batch.",
        relation="order",
        kind="unclipped_grad",
        where="embedding.weight",
    ),
    SharedFault(
        name="fp8-scale-of-last-microbatch",
        what="The scale of an FP8 tensor follows the last micro-batch of a step instead of the "
        "largest value of all.",
        relation="order",
        kind="activation",
        where="layers.0.fc1.output",
        arguments={"fp8": True, "microbatches": 3},
    ),
    SharedFault(
        name="dropout-of-padded-rows",
        what="The dropout mask is drawn row by row of the padded batch, so padding moves which "
        "elements of the real tokens are dropped.",
        relation="padding",
        kind="activation",
        where="layers.0.dropout.output",
    ),
    SharedFault(
        name="padding-attended",
        what="The attention does not mask padded keys.",
        relation="padding",
        kind="activation",
        where="layers.0.attention.proj.output",
    ),
    SharedFault(
        name="recompute-draws-again",
        what="The dropout mask depends on how often the layer ran, so a recomputed forward has "
        "another one.",
        relation="recompute",
        kind="activation_grad",
        where="layers.0.fc2.output",
    ),
    SharedFault(
        name="gradient-overwritten",
        what="The gradient of a micro-batch replaces those before it instead of being added.",
        relation="order",
        kind="unclipped_grad",
        where="embedding.weight",
    ),
    SharedFault(
        name="mean-per-rank",
        what="Each dp rank divides by its own tokens, and the ranks' gradients are averaged.",
        relation="order",
        kind="loss",
        where="loss",
        arguments={"microbatches": 4},
        point={"dp": 2},
    ),
)

NAMES = tuple(fault.name for fault in FAULTS)


def find(name: str) -> SharedFault:
    """The fault of this name.  Raises ValueError, listing the names, where there is none."""
    for fault in FAULTS:
        if fault.name == name:
            return fault
    raise ValueError(f"there is no fault {name!r} to plant; choose one of {', '.join(NAMES)}")
