"""Faults that a reference and a candidate share; `masked.train(..., fault=name)` plants one.

A comparison of the two finds a fault only if the effect of the fault depends on how micro-batches
are divided over ranks; the comparison misses more than half of the faults listed here.  An entry
names the metamorphic relation that finds the fault, and the first tensor that differs under this
relation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_trainsafe.core.tensor_id import Kind


@dataclass(frozen=True, slots=True)
class SharedFault:
    """One fault: what goes wrong, the relation that finds it, and where it shows first.

    `point` and `arguments` are those of a Run in which the fault shows.  `where` is the path of the
    first wrong tensor, and `kind` is the kind of this tensor.
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
        what="The z-loss, which is already a mean over tokens, is also divided by the batch size.",
        relation="split",
        kind="loss",
        where="loss",
    ),
    SharedFault(
        name="z-loss-counts-padding",
        what="The z-loss is summed over all entries, including padded ones.",
        relation="padding",
        kind="loss",
        where="loss",
    ),
    SharedFault(
        name="z-loss-counts-unused-ids",
        what="The z-loss uses the normaliser of all logits, including those of unused ids.",
        relation="vocabulary",
        kind="loss",
        where="loss",
    ),
    SharedFault(
        name="clip-before-unscale",
        what="Gradients are clipped while they are still multiplied by the loss scale.",
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
        "largest value of all micro-batches.",
        relation="order",
        kind="activation",
        where="layers.0.fc1.output",
        arguments={"fp8": True, "microbatches": 3},
    ),
    SharedFault(
        name="dropout-of-padded-rows",
        what="The dropout mask is computed for the rows of the padded batch, so padding changes "
        "which elements of the real tokens are dropped.",
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
        "another mask.",
        relation="recompute",
        kind="activation_grad",
        where="layers.0.fc2.output",
    ),
    SharedFault(
        name="gradient-overwritten",
        what="The gradient of a micro-batch replaces the earlier ones instead of being added.",
        relation="order",
        kind="unclipped_grad",
        where="embedding.weight",
    ),
    SharedFault(
        name="mean-per-rank",
        what="Each dp rank divides its loss by the number of its own tokens, and the ranks' "
        "gradients are averaged.",
        relation="order",
        kind="loss",
        where="loss",
        arguments={"microbatches": 4},
        point={"dp": 2},
    ),
)

NAMES = tuple(fault.name for fault in FAULTS)


def find(name: str) -> SharedFault:
    """Return the fault with this name; raise ValueError, listing the names, if there is none."""
    for fault in FAULTS:
        if fault.name == name:
            return fault
    raise ValueError(f"there is no fault {name!r}; choose one of {', '.join(NAMES)}")
