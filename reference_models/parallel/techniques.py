"""How a model is trained, beside where its ranks stand: what a user may turn on or choose.

Made by the programs, but for `recompute`, which is an axis; every module finds it as
`axes.techniques`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

    from pytest_trainsafe.record.context import Context
    from pytest_trainsafe.reference_models.parallel.axes import Axes

CP_METHODS = ("all_gather", "ring")
COMPILE_BACKENDS = ("inductor", "aot_eager")
RECOMPUTE = ("none", "full", "selective")


@dataclass(frozen=True, slots=True)
class Techniques:
    """The choices of one Run; those that need more ranks than it has do nothing.

    `cp_method` is how keys and values travel over cp.  `tp_overlap` computes the gradients of
    weights while those of inputs are reduced over tp.  `recompute` forgets activations and
    computes them again in the backward: of chunks of `recompute_num_layers` layers ("full"), or
    of the core attention alone ("selective").  `fp8` computes the linear layers of attention and
    MLP in FP8, on one rank too.

    Over dp and cp, gradients are summed one by one, or averaged in buckets of at least `bucket`
    elements; `overlap_grad_reduce` does so while the last backward of a step goes on, in buckets
    of some size where `bucket` gives none.  ZeRO has buckets too, and with `overlap_param_gather`
    a module waits for its updated parameters when it needs them.

    With `compile` the model is compiled, by torch.compile's `compile_backend`: "inductor", which
    needs a C++ compiler on CPUs, or "aot_eager", which needs none.

    An unknown choice raises ValueError.
    """

    cp_method: str = "all_gather"
    tp_overlap: bool = False
    recompute_num_layers: int = 1
    fp8: bool = False
    recompute: str = "none"
    bucket: int = 0
    overlap_grad_reduce: bool = False
    overlap_param_gather: bool = False
    compile: bool = False
    compile_backend: str = "inductor"

    def __post_init__(self) -> None:
        for name, known in (
            ("cp_method", CP_METHODS),
            ("recompute", RECOMPUTE),
            ("compile_backend", COMPILE_BACKENDS),
        ):
            if getattr(self, name) not in known:
                raise ValueError(
                    f"{name}={getattr(self, name)!r} is unknown; choose one of {', '.join(known)}"
                )
        if self.bucket < 0:
            raise ValueError(f"bucket={self.bucket} must be at least 0, a number of elements")
        if self.recompute_num_layers < 1:
            raise ValueError(
                f"recompute_num_layers={self.recompute_num_layers} must be at least 1: it is the "
                "number of layers that are recomputed together"
            )


def recompute_of(value: object) -> str:
    """The name of a value of the axis `recompute`, which may also be a plain yes or no."""
    return {True: "full", False: "none"}[value] if isinstance(value, bool) else str(value)


def compiled(model: nn.Module, axes: Axes) -> None:
    """Compile the calls of a model, where that is asked for.

    As one graph, unless the model has collectives of its own.
    """
    techniques = axes.techniques
    if techniques.compile:
        alone = axes.tp.size == axes.cp.size == 1
        model.compile(backend=techniques.compile_backend, fullgraph=alone)


def microbatches_of(ctx: Context, default: int) -> int:
    """The micro-batches of a step: those of the axis, or where a Point names none the default."""
    return int(ctx.point.get("microbatches", default))
