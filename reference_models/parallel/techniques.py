"""Techniques: choices of a training that do not distribute work over ranks.

A program creates a `Techniques` from its arguments, except `recompute` and `compile`, which are
axes of the Point.  The modules of the model read it as `axes.techniques`.
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
    """The choices of one Run; those that need more ranks than the Run has do nothing.

    `cp_method` is how keys and values are sent over cp: "all_gather" or "ring".  `tp_overlap`
    computes the gradients of weights while the gradients of inputs are reduced over tp.
    `recompute` discards activations and computes them again in the backward: those of chunks of
    `recompute_num_layers` layers ("full"), or those of the core attention only ("selective").
    `fp8` computes the linear layers of attention and MLP in FP8, also on a single device.

    By default, gradients are summed over dp and cp one by one.  With `bucket` > 0 they are averaged
    in buckets of at least so many elements.  `overlap_grad_reduce` averages them in buckets during
    the last backward of a step; if `bucket` is 0, the buckets have a default size.  ZeRO uses
    buckets too; with `overlap_param_gather`, a module waits for its updated parameters just before
    its forward.

    With `compile`, torch.compile compiles the model with `compile_backend`: "inductor", which
    needs a C++ compiler on CPUs, or "aot_eager", which needs none.

    Raises ValueError for an unknown choice.
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
            raise ValueError(f"bucket={self.bucket} must be a number of elements, at least 0")
        if self.recompute_num_layers < 1:
            raise ValueError(
                f"recompute_num_layers={self.recompute_num_layers} must be at least 1: it is the "
                "number of layers that are recomputed together"
            )


def recompute_of(value: object) -> str:
    """Returns the name of a value of the axis `recompute`: True is "full", False is "none"."""
    return {True: "full", False: "none"}[value] if isinstance(value, bool) else str(value)


def compiled(model: nn.Module, axes: Axes) -> None:
    """Compiles the model if `axes.techniques.compile` is set.

    The model must compile as a single graph, unless tp or cp put collectives into it.
    """
    techniques = axes.techniques
    if techniques.compile:
        alone = axes.tp.size == axes.cp.size == 1
        model.compile(backend=techniques.compile_backend, fullgraph=alone)


def microbatches_of(ctx: Context, default: int) -> int:
    """Returns the micro-batches per step: the Point's axis `microbatches`, or else `default`."""
    return int(ctx.point.get("microbatches", default))
