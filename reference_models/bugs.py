"""The bugs that can be planted in the parallel GPT: real ones, each by its real mechanism.

`gpt.train(..., bug=name)` plants one.  An entry says where it is seen first, so that a test of
a detector can ask whether the detector points there.  Knows nothing of torch.

The numbers are those of TTrace, Table 1 (Jiang et al., "TTrace: Lightweight Error Checking and
Diagnosis for Distributed Training").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pytest_trainsafe.sweep.point import Point
from pytest_trainsafe.trace.schema import Kind


@dataclass(frozen=True, slots=True)
class Bug:
    """One bug: what goes wrong, where it came from, at which Points, and where it shows first.

    `category` is TTrace's: WD wrong data, WC wrong communication, MC missing communication.
    `module`, `tensor` and `kind` name the first wrong tensor, in step 0 and micro-batch 0;
    `pattern` names what it is in relation to the right one.
    """

    name: str
    ttrace: int
    category: Literal["WD", "WC", "MC"]
    origin: str
    what: str
    when: str
    triggers: Callable[[Point], bool]
    module: str
    tensor: str
    kind: Kind
    pattern: str


BUGS = (
    Bug(
        name="tp-embedding-mask",
        ttrace=1,
        category="WD",
        origin="https://github.com/awslabs/slapo/pull/80",
        what=(
            "The mask that blanks tokens of other ranks is made a second time for the output, "
            "from ids that the first mask has already shifted. Rank 0 then blanks nothing, and "
            "tokens of other ranks come out as its row 0; the other ranks blank all or most of "
            "their own."
        ),
        when="tp > 1",
        triggers=lambda point: point.size("tp") > 1,
        module="embedding.word_embeddings",
        tensor="output",
        kind="activation",
        pattern="",
    ),
    Bug(
        name="cp-loss-scaling",
        ttrace=3,
        category="WD",
        origin="https://github.com/NVIDIA/Megatron-LM/issues/673",
        what=(
            "The loss to differentiate is multiplied by the size of cp, although it is already "
            "divided by the tokens of the whole step. The reported loss stays right, and AdamW, "
            "which ignores the scale of gradients, hides the rest."
        ),
        when="cp > 1",
        triggers=lambda point: point.size("cp") > 1,
        module="cross_entropy",
        tensor="output",
        kind="activation_grad",
        pattern="scaled",
    ),
    Bug(
        name="sp-layernorm-grads",
        ttrace=12,
        category="MC",
        origin="https://github.com/NVIDIA/Megatron-LM/issues/1446",
        what=(
            "The parameters of the layer norms lack the mark `sequence_parallel`, so their "
            "gradients are never summed over tp: each rank keeps the term of its shard of the "
            "sequence, and the ranks' weights drift apart."
        ),
        when="sp with tp > 1",
        triggers=lambda point: bool(point.get("sp", False)) and point.size("tp") > 1,
        module="decoder.final_layernorm",
        tensor="weight",
        kind="param_grad",
        pattern="partial sum",
    ),
)

NAMES = tuple(bug.name for bug in BUGS)


def find(name: str) -> Bug:
    """The bug of this name.  Raises ValueError, listing the names, where there is none."""
    for bug in BUGS:
        if bug.name == name:
            return bug
    raise ValueError(f"there is no bug {name!r} to plant; choose one of {', '.join(NAMES)}")
