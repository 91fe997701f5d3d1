"""The types of tensors, as observed: along each mesh axis replicated, a partial sum, or sharded.

Layouts are tried on the values; what a program declares is tried last, and is needed where a
framework cuts a tensor into ranges or rectangles.  On exact numbers, a layout either gives the
reference's tensor or does not, so a type that is found is one that the ranks' values have.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import torch

from pytest_trainsafe.align.logical import free_axes, logical_tensor, parts_of
from pytest_trainsafe.core.layout import (
    Flat,
    Layout,
    Owned,
    Part,
    Partial,
    Shard,
    Slices,
    Split,
    Striped,
    ZigZag,
)
from pytest_trainsafe.core.rungs.floating import arithmetic_of
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judges.compare.declarations.infer import Sample, infer
from pytest_trainsafe.trace.reader import Trace

#: The layouts that a framework sets, because no declaration could.
_BY_FRAMEWORKS = (Flat, Slices, Owned)

DIFFERENT = "different"
REPLICATED = "replicated"


@dataclass(frozen=True, slots=True)
class TensorType:
    """What the ranks along each axis hold of one tensor, by axis.

    Words are "replicated", "partial sum", "partial mean", "sharded (dimension 1)", "on one rank"
    and "different"; the last says that no layout gives the reference's tensor.  `factor` is then
    the number by which it is multiplied in the layout that is declared; None for none.
    """

    id: TensorId
    axes: dict[str, str]
    factor: float | None = None

    def __str__(self) -> str:
        words = ", ".join(f"{axis} {word}" for axis, word in self.axes.items())
        return words if self.factor is None else f"{words}: {self.factor:g} times the reference"


def observed_types(candidate: Trace, reference: Trace, every: bool = False) -> Iterator[TensorType]:
    """The types of the tensors of a Run on exact numbers, in the order in which they were computed.

    Of a tensor that a program computes in each step and micro-batch, only the first is looked at
    unless `every` is set.  Tensors that one of the sides lacks are left out, and so are axes of
    size 1.
    """
    axes = [axis for axis in candidate.point.mesh.axes if candidate.sizes[axis] > 1]
    theirs = set(reference.ids())
    seen: set[TensorId] = set()
    for id in candidate.ids():
        once = msgspec.structs.replace(id, step=0, microbatch=None)
        if id not in theirs or (once in seen and not every):
            continue
        seen.add(once)
        whole = logical_tensor(reference, id).whole
        if whole is not None:
            yield _observed(candidate, id, whole, axes)


def _observed(trace: Trace, id: TensorId, whole: torch.Tensor, axes: Sequence[str]) -> TensorType:
    parts = parts_of(trace, id)
    layout = _inferred(trace, id, parts, whole, axes)
    declared = None
    if layout is None:
        merged = logical_tensor(trace, id, whole.shape)
        declared = None if merged.findings else merged.whole
        if _same(declared, whole):
            layout = parts[0].layout
    if layout is not None:
        return TensorType(id, {axis: _word(layout, parts, axis, axes) for axis in axes})
    words = {axis: _alike(parts, axis, axes) or DIFFERENT for axis in axes}
    if DIFFERENT not in words.values():
        words = dict.fromkeys(words, DIFFERENT)
    if declared is None or declared.shape != whole.shape:
        return TensorType(id, words)
    return TensorType(id, words, arithmetic_of(whole.dtype, trace.numbers).ratio(declared, whole))


def _inferred(
    trace: Trace, id: TensorId, parts: Sequence[Part], whole: torch.Tensor, axes: Sequence[str]
) -> Layout | None:
    """A layout that gives the reference's tensor, whatever was declared; None if none is found."""
    if any(isinstance(each, _BY_FRAMEWORKS) for part in parts for each in part.layout):
        return None
    bare = [msgspec.structs.replace(each, layout=()) for each in parts]

    def ratio(tensor: torch.Tensor) -> float:
        return 0.0 if _same(tensor, whole) else math.inf

    found = infer(Sample(bare, whole, ratio, free_axes(id), trace.numbers), trace.sizes, axes)
    explained = [*found.confirmed(), *(each.layout for each in found.explained)]
    return explained[0] if explained else None


def _same(tensor: torch.Tensor | None, whole: torch.Tensor) -> bool:
    return tensor is not None and torch.equal(tensor, whole)


def _word(layout: Layout, parts: Sequence[Part], axis: str, axes: Sequence[str]) -> str:
    """The type along one axis, in the layout that was found."""
    for each in layout:
        if isinstance(each, _BY_FRAMEWORKS):
            if axis in each.axes:
                return "sharded (by its framework)"
        elif each.axis == axis and isinstance(each, Partial):
            return "partial mean" if each.op == "avg" else "partial sum"
        elif each.axis == axis and isinstance(each, Split):
            return f"sharded (dimension {each.dim}{_how(each)})"
    return _alike(parts, axis, axes) or DIFFERENT


def _how(placement: Split) -> str:
    match placement:
        case ZigZag():
            return ", zig-zag"
        case Striped():
            return ", dealt out"
        case Shard(blocks=blocks) if blocks:
            return f", blocks {list(blocks)}"
    return ""


def _alike(parts: Sequence[Part], axis: str, axes: Sequence[str]) -> str:
    """The type if the ranks along an axis hold the same, or if one alone holds it; else ""."""
    groups: dict[tuple[int, ...], list[torch.Tensor]] = {}
    for part in parts:
        others = tuple(part.coordinates[each] for each in axes if each != axis)
        groups.setdefault(others, []).append(part.tensor)
    if all(len(held) == 1 for held in groups.values()):
        return "on one rank"
    same = all(
        held[0].shape == each.shape and torch.equal(held[0], each)
        for held in groups.values()
        for each in held[1:]
    )
    return REPLICATED if same else ""
