"""What an annotation file may say, as types.  `parse` makes them, `declared` makes Layouts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pytest_trainsafe.errors import TrainsafeError


class AnnotationError(TrainsafeError, ValueError):
    """An annotation is wrong; the message names the file, the entry, and what is allowed."""


#: Where a module's choice is: nowhere, in its output, or in a call of topk (or argmax) within it.
Decision = Literal["", "output", "topk"]


@dataclass(frozen=True, slots=True)
class ParameterEntry:
    """How parameters are cut over tp.  `blocks` are the logical sizes of fused blocks.

    `expert_parallel` parameters are held by some of the dp and cp ranks only, at ep > 1, and cut
    over `expert_tp_size` ranks where that is not tp.  Each rank along an axis of
    `gradient_partial` computes a term of the gradient.
    """

    tp_dim: int | None = None
    blocks: tuple[int, ...] = ()
    sequence_parallel: bool = False
    expert_parallel: bool = False
    expert_tp_size: int | None = None
    gradient_partial: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OutputEntry:
    """How a module's output is cut, or that each rank holds a term of it.

    At Points where an axis of `local` is in use, it has no logical counterpart.  `permuted` says
    for an axis in which order the output has its dimensions where that is in use.
    A `decision` is the indices of what was chosen by scores ("output"), or a choice that the
    module makes inside itself ("topk").  `dp_dim` is the dimension of which each dp rank has a
    slice, where dp ranks share every micro-batch.
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


@dataclass(frozen=True, slots=True)
class LossEntry:
    """The axes whose ranks hold terms of the loss (`partial`) or of its mean (`mean`)."""

    partial: tuple[str, ...] = ()
    mean: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Entries:
    """A whole annotation file, checked.  The order of patterns is the file's.

    `mean_gradients` are the axes over which gradients are yet to be averaged; None where the file
    says nothing of them, and () where it says that they are not.  `optional` has the entries that
    need not match anything, as "modules: linear_qkv".
    """

    cp_order: Literal["zigzag", "contiguous"] | None = None
    loss: LossEntry | None = None
    mean_gradients: tuple[str, ...] | None = None
    parameters: tuple[tuple[str, ParameterEntry], ...] = ()
    modules: tuple[tuple[str, dict[str, OutputEntry]], ...] = ()
    buffers: tuple[tuple[str, OutputEntry], ...] = ()
    optional: frozenset[str] = frozenset()


def is_glob(pattern: str) -> bool:
    """Whether a pattern may match more than one name."""
    return any(character in pattern for character in "*?[#")
