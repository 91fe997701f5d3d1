"""Finds the layout that explains the ranks' parts of a tensor, by comparison with the reference.

Called for tensors without a declared layout.  A layout explains a tensor if the parts, in that
layout, merge without a finding into the reference, up to the rounding that the caller allows.  The
judge requires the same of a declared layout.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from pytest_trainsafe.align.merge import Merged, Part, merge
from pytest_trainsafe.core.indices import LayoutError, local_shape
from pytest_trainsafe.core.layout import (
    Flat,
    Layout,
    Owned,
    Partial,
    Placement,
    Shard,
    Sizes,
    Slices,
    Split,
    Striped,
    ZigZag,
)
from pytest_trainsafe.core.mesh import mesh_of, moved
from pytest_trainsafe.core.rungs.arithmetic import Arithmetic
from pytest_trainsafe.core.rungs.floating import FLOATING
from pytest_trainsafe.judges.compare.declarations.match_rows import fused_blocks

#: The axes over which layouts are tried, outermost cut first.
AXES = ("cp", "tp")

#: Returns the error of a merged tensor divided by its allowance; up to 1, rounding explains it.
Ratio = Callable[[torch.Tensor], float]


@dataclass(frozen=True, slots=True)
class Sample:
    """One tensor of unknown layout: the ranks' parts, the reference, and the allowed error.

    Placements that the parts already have are kept; layouts are tried over the other axes.  Along
    `free_axes`, only some ranks need to hold the tensor.  `numbers` is the arithmetic of the rung.
    """

    parts: Sequence[Part]
    reference: torch.Tensor
    ratio: Ratio
    free_axes: Sequence[str] = ("pp", "dp")
    numbers: Arithmetic = FLOATING


@dataclass(frozen=True, slots=True)
class FittingLayout:
    """A layout with which the parts merge into the reference.

    `confirmed` is true if the values rule out other layouts.  For each axis that cuts the tensor,
    the parts must no longer merge into the reference once the ranks along the axis are exchanged.
    For each axis over which parts are summed, the parts must differ.  Zeros confirm nothing.
    """

    layout: Layout
    confirmed: bool


@dataclass(frozen=True, slots=True)
class Inferred:
    """The layouts that explain a tensor, simplest first; or the closest layout if none does.

    `left` is the relative error (Frobenius) of the closest layout, `trouble` the first finding of
    its merge.  `partly` is a layout that explains one sample of the tensor, if each sample is
    explained but no layout explains them all.
    """

    explained: list[FittingLayout]
    nearest: Layout | None = None
    left: float = float("inf")
    trouble: str = ""
    partly: Layout | None = None

    def confirmed(self) -> list[Layout]:
        """The layouts that the values confirm."""
        return [each.layout for each in self.explained if each.confirmed]


def infer(sample: Sample, sizes: Sizes, axes: Sequence[str] = AXES) -> Inferred:
    """Try every layout that the shapes allow, over the axes in `axes` without declared placements.

    Returns the layouts that explain the sample, or the closest one.
    """
    explained: list[FittingLayout] = []
    nearest = Inferred([])
    for layout in _candidates(sample, sizes, axes):
        merged = _merge(sample, layout, sizes)
        if _explains(merged, sample):
            explained.append(FittingLayout(layout, _is_confirmed(sample, layout, sizes)))
        elif not explained:
            left = _left(merged, sample.reference)
            trouble = next((f.message.partition("; layout from")[0] for f in merged.findings), "")
            if nearest.nearest is None or left < nearest.left:
                nearest = Inferred([], layout, left, trouble)
    explained.sort(key=lambda each: _complexity(each.layout))
    return Inferred(explained) if explained else nearest


def infer_all(samples: Sequence[Sample], sizes: Sizes, axes: Sequence[str] = AXES) -> Inferred:
    """The layouts that explain every sample of one tensor (micro-batches, steps).

    A layout is confirmed if the values of one sample confirm it.
    """
    first, *others = (infer(sample, sizes, axes) for sample in samples)
    if not first.explained:
        return first
    kept = []
    for each in first.explained:
        same = [next((e for e in o.explained if e.layout == each.layout), None) for o in others]
        found = [each, *(e for e in same if e is not None)]
        if len(found) == len(samples):
            kept.append(FittingLayout(each.layout, any(e.confirmed for e in found)))
    if kept:
        return Inferred(kept)
    partly = replace(first, explained=[], partly=first.explained[0].layout)
    return next((other for other in others if not other.explained), partly)


def _candidates(sample: Sample, sizes: Sizes, axes: Sequence[str]) -> Iterator[Layout]:
    """The layouts that give every part its shape.

    For a shard over tp, these include a layout with the fused blocks that the values show.
    """
    given = sample.parts[0].layout
    shape = tuple(sample.reference.shape)
    if any(part.tensor.ndim != len(shape) for part in sample.parts):
        return
    said: dict[str, list[Placement]] = {axis: [] for axis in ("dp", *AXES, *axes)}
    for placement in given:
        if isinstance(placement, Slices | Flat | Owned):
            return  # rectangles, flat ranges and owners are set by frameworks
        said.setdefault(mesh_of(sizes).role(placement.axis), []).append(placement)
    choices = [
        list(_choices(axis, sample))
        if axis in axes and not known and sizes[axis] > 1
        else [tuple(known)]
        for axis, known in said.items()
    ]
    for chosen in itertools.product(*choices):
        layout: Layout = tuple(itertools.chain.from_iterable(chosen))
        if not _fits(layout, sample, sizes, shape):
            continue
        yield layout
        for place, placement in enumerate(layout):
            if isinstance(placement, Shard) and placement.axis == "tp" and not placement.blocks:
                blocks = fused_blocks(sample.parts, sample.reference, layout, place, sizes)
                cut = (*layout[:place], replace_blocks(placement, blocks), *layout[place + 1 :])
                if blocks and _fits(cut, sample, sizes, shape):
                    yield cut


def replace_blocks(placement: Shard, blocks: tuple[int, ...]) -> Shard:
    """A copy of `placement` that splits each of `blocks` instead of the whole dimension."""
    return Shard(placement.dim, placement.axis, blocks)


def _choices(axis: str, sample: Sample) -> Iterator[tuple[Placement, ...]]:
    """Yields the placements to try along one axis, each as a tuple; () stands for replicated."""
    yield ()
    for dim in range(sample.reference.ndim):
        yield (Shard(dim, axis),)
        if axis == "cp":
            yield (ZigZag(dim, axis),)
            yield (Striped(dim, axis),)
    if axis == "dp":
        return  # dp ranks share only batches, and no module sums over dp
    yield (Partial(axis),)
    if sample.reference.is_floating_point() or sample.reference.is_complex():
        yield (Partial(axis, "avg"),)


def _fits(layout: Layout, sample: Sample, sizes: Sizes, shape: tuple[int, ...]) -> bool:
    try:
        return all(
            local_shape(layout, part.coordinates, sizes, shape) == tuple(part.tensor.shape)
            for part in sample.parts
        )
    except LayoutError:
        return False


def _merge(sample: Sample, layout: Layout, sizes: Sizes, shift: str = "") -> Merged:
    """Merge the parts in a layout; `shift` exchanges the ranks of an axis cyclically."""
    parts = []
    for part in sample.parts:
        at = part.coordinates
        if shift:
            at = moved(at, sizes, shift, (at[shift] + 1) % sizes[shift])
        parts.append(Part(part.rank, at, part.tensor, layout, "a layout that was tried"))
    return merge(
        parts,
        sizes,
        shape=tuple(sample.reference.shape),
        free_axes=sample.free_axes,
        numbers=sample.numbers,
    )


def _explains(merged: Merged, sample: Sample) -> bool:
    whole = merged.tensor is not None and merged.tensor.shape == sample.reference.shape
    return bool(whole and not merged.findings and sample.ratio(_of(merged)) <= 1)


def _is_confirmed(sample: Sample, layout: Layout, sizes: Sizes) -> bool:
    """Whether the values, and not only the shapes, confirm all placements that are not declared."""
    for placement in layout:
        if placement in sample.parts[0].layout:
            continue
        if isinstance(placement, Partial):
            if not _terms_differ(sample, placement.axis):
                return False
        elif isinstance(placement, Split):
            others = [part.coordinates[placement.axis] for part in sample.parts]
            if len(set(others)) < 2 or _explains(
                _merge(sample, layout, sizes, placement.axis), sample
            ):
                return False
    return True


def _terms_differ(sample: Sample, axis: str) -> bool:
    """Whether the parts along an axis, as terms of a sum, differ, and at least two are not zero.

    Equal parts may be replicas that are wrong by a factor, which no layout corrects.
    """
    by_place: dict[int, torch.Tensor] = {}
    for part in sample.parts:
        by_place.setdefault(part.coordinates[axis], part.tensor)
    terms = list(by_place.values())
    several = sum(bool(term.any()) for term in terms) > 1
    return several and any(not torch.equal(terms[0], term) for term in terms[1:])


def _left(merged: Merged, reference: torch.Tensor) -> float:
    if merged.whole is None or merged.whole.shape != reference.shape:
        return float("inf")
    wide = torch.complex128 if reference.is_complex() else torch.float64
    value, right = _of(merged).to(wide), reference.to(wide)
    size = float(torch.linalg.vector_norm(right)) or 1.0
    left = float(torch.linalg.vector_norm(value - right)) / size
    return left if left == left else float("inf")


def _of(merged: Merged) -> torch.Tensor:
    assert merged.tensor is not None
    return merged.tensor


def _complexity(layout: Layout) -> tuple[int, int, int]:
    """Sort key: fewer placements first, then shards before sums, then fewer fused blocks."""
    sums = sum(isinstance(placement, Partial) for placement in layout)
    blocks = sum(len(placement.blocks) for placement in layout if isinstance(placement, Shard))
    return len(layout), sums, blocks
