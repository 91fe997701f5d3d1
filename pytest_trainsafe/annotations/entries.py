"""The entries of an annotation file, as types.  `parse` builds them, `declared` uses them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pytest_trainsafe.errors import TrainsafeError


class AnnotationError(TrainsafeError, ValueError):
    """An annotation is wrong; the message names the file, the entry, and what is allowed."""


class MissingFileError(AnnotationError):
    """There is no annotation file at the path that a program gives; the message names the path."""


#: Where a module's decision is: nowhere, in its output, or in a call of topk or argmax inside it.
Decision = Literal["", "output", "topk"]

#: The order in which cp ranks divide a sequence.
CpOrder = Literal["zigzag", "contiguous", "striped"]
CP_ORDERS: tuple[CpOrder, ...] = ("zigzag", "contiguous", "striped")


#: `function(coordinates, sizes, shape)` returns the logical shape, and for each dimension the
#: logical rows that this rank holds: a slice, or a list of slices in increasing order.
#: `coordinates` has the rank's coordinate along each mesh axis, `sizes` the number of ranks along
#: it, and `shape` is the shape of the rank's own tensor.
Placing = Callable[
    [Mapping[str, int], Mapping[str, int], tuple[int, ...]],
    tuple[Sequence[int], Sequence[slice | Sequence[slice]]],
]


@dataclass(frozen=True, slots=True)
class ParameterEntry:
    """How parameters are split over tp: along `tp_dim`, or not at all if it is None.

    `blocks` are the sizes of fused blocks in the logical tensor.  `expert_parallel` marks
    parameters of experts: with ep > 1, only some of the dp and cp ranks, the owners, hold them,
    split over `expert_tp_size` ranks (over tp if it is None).  `gradient_partial` names axes whose
    ranks each compute one term of the gradient; with `sequence_parallel`, this holds for tp if sp
    is on.  `slices` is a function that gives the rows that a rank holds, at Points where one of
    `axes` is in use.
    """

    tp_dim: int | None = None
    blocks: tuple[int, ...] = ()
    sequence_parallel: bool = False
    expert_parallel: bool = False
    expert_tp_size: int | None = None
    gradient_partial: tuple[str, ...] = ()
    slices: Placing | None = None
    axes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OutputEntry:
    """How an output or an input of a module is split, or whether each rank holds one term of it.

    A field ending in `_dim` is the dimension that is split over an axis; one ending in `_partial`
    says that each rank along the axis holds one term of a sum.
    At Points that use an axis in `local`, the output has no logical counterpart.  `permuted` maps
    an axis to the permutation that restores the order of dimensions at Points that use the axis.
    `decision` is "output" for a module that returns the indices it chose by scores, and "topk"
    for one that chooses inside its forward.  `dp_dim` is the dimension that is split over dp, for
    programs whose dp ranks share every micro-batch.  `slices` and `axes` are as in ParameterEntry.
    """

    tp_dim: int | None = None
    sp_dim: int | None = None
    cp_dim: int | None = None
    tp_partial: bool = False
    sp_partial: bool = False
    cp_partial: bool = False
    blocks: tuple[int, ...] = ()
    local: tuple[str, ...] = ()
    permuted: tuple[tuple[str, tuple[int, ...]], ...] = ()
    decision: Decision = ""
    dp_dim: int | None = None
    slices: Placing | None = None
    axes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LossEntry:
    """The axes over which the loss is the sum (`partial`) or mean (`mean`) of the ranks' values."""

    partial: tuple[str, ...] = ()
    mean: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Entries:
    """The checked content of an annotation file.  Patterns are in the order of the file.

    `mean_gradients` are the axes over which gradients have yet to be averaged: None if the file
    does not declare them, () if it declares that there are none.  `optional` lists the entries
    that need not match anything, as "modules: linear_qkv".
    """

    cp_order: CpOrder | None = None
    loss: LossEntry | None = None
    mean_gradients: tuple[str, ...] | None = None
    parameters: tuple[tuple[str, ParameterEntry], ...] = ()
    modules: tuple[tuple[str, dict[str, OutputEntry]], ...] = ()
    buffers: tuple[tuple[str, OutputEntry], ...] = ()
    optional: frozenset[str] = frozenset()


def is_glob(pattern: str) -> bool:
    """Whether a pattern may match more than one name."""
    return any(character in pattern for character in "*?[#")
