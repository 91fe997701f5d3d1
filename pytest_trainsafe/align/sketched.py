"""Sketches of logical tensors, computed as the sum of the ranks' sketches.

A sketch is a small matrix of random projections, kept in place of a tensor's values
(`trace/tensors/sketch.py`).  Called by the judges for tensors whose values were not kept.  A tensor
whose parts do not fit together (a part is missing, or replicas differ) has no sketch here; it must
be recorded in full, so that `align.merge` can report the fault.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from pytest_trainsafe.align.logical import free_axes
from pytest_trainsafe.core.indices import scale, split_flat
from pytest_trainsafe.core.layout import Flat, Owned, Partial, Scaled, Slices, axes_of, common_form
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.trace.reader import RankTrace, Trace
from pytest_trainsafe.trace.schema import TensorEvent
from pytest_trainsafe.trace.tensors.sketch import Sketcher, Values

Holder = tuple[RankTrace, TensorEvent]


@dataclass(frozen=True, slots=True)
class Sketched:
    """The sketch of a logical tensor, of shape [8, 16] in float64, and the tensor's own shape."""

    values: Values
    shape: tuple[int, ...]

    @property
    def norm(self) -> float:
        """An estimate of the Frobenius norm; NaN or infinite if the tensor has such an element."""
        return math.sqrt(self._power / self.values.size)

    @property
    def _power(self) -> float:
        flat = self.values.reshape(-1)
        return float(flat.dot(flat))

    def __sub__(self, other: Sketched) -> Sketched:
        assert self.shape == other.shape
        with np.errstate(invalid="ignore"):  # infinities
            return Sketched(self.values - other.values, self.shape)

    def along(self, other: Sketched) -> float:
        """An estimate of <self, other> / <other, other>."""
        return float(self.values.reshape(-1).dot(other.values.reshape(-1))) / other._power


def is_whole(trace: Trace, id: TensorId) -> bool:
    """Whether every rank that recorded `id` kept its values and not only a sketch of them."""
    return id not in trace.sketched


def logical_sketch(trace: Trace, id: TensorId) -> Sketched | None:
    """The sketch of a logical tensor, or None.

    None if parts are missing, replicas differ in a bit, or ranks disagree on the tensor's shape,
    dtype or layout.
    """
    held = trace.holders(id)
    if not held or not _consistent(held) or not _complete(trace, held, free_axes(id)):
        return None
    total: Values | None = None
    shapes = set()
    for group in _groups(held).values():
        if any(event.hash != group[0][1].hash for _, event in group):
            return None
        part = _part(trace, *group[0])
        if part is None:
            return None
        values, shape = part
        shapes.add(shape)
        with np.errstate(invalid="ignore"):
            total = values if total is None else total + values
    assert total is not None
    if len(shapes) > 1:  # an uneven split: a rank alone cannot know the logical shape
        return None
    for placement in held[0][1].layout:
        if isinstance(placement, Partial) and placement.op == "avg":
            total = total / trace.sizes[placement.axis]
    factor = scale(held[0][1].layout, trace.sizes)
    return Sketched(total if factor == 1 else total / factor, shapes.pop())


def _part(trace: Trace, rank: RankTrace, event: TensorEvent) -> tuple[Values, Shape] | None:
    if event.sketch >= 0:
        return trace.sketch(rank.rank, event), event.logical
    sketcher = _sketcher(trace.point, rank.rank)
    return sketcher.sketch(trace.load(rank.rank, event), event.layout)


Shape = tuple[int, ...]


@functools.lru_cache(maxsize=16)
def _sketcher(point: Point, rank: int) -> Sketcher:
    """The Sketcher of a rank, which computes the sketch of a part that was recorded as values.

    Small parts are always recorded as values.  So one rank may have recorded the values of its part
    of a tensor, and another rank a sketch of its larger part.
    """
    return Sketcher(point.coordinates(rank), point.sizes)


def _consistent(held: Sequence[Holder]) -> bool:
    first = held[0][1]
    return all(
        event.dtype == first.dtype and common_form(event.layout) == common_form(first.layout)
        for _, event in held[1:]
    )


def _groups(held: Sequence[Holder]) -> dict[Hashable, list[Holder]]:
    """The ranks that hold parts of a tensor, with their events, in groups that hold the same part.

    The keys identify the parts.
    """
    groups: dict[Hashable, list[Holder]] = {}
    for rank, event in held:
        where: list[Hashable] = []
        for placement in event.layout:
            match placement:
                case Slices():
                    where.append(placement.ranges)
                case Flat():
                    where.append((placement.offset, placement.length))
                case Scaled() | Owned():
                    pass
                case _:
                    where.append(rank.coordinates[placement.axis])
        groups.setdefault(tuple(where), []).append((rank, event))
    return groups


def _complete(trace: Trace, held: Sequence[Holder], free_from: Sequence[str]) -> bool:
    """Whether every rank that should hold a part of the tensor holds one.

    For a layout of rectangles: whether the rectangles cover the tensor.  `free_from` are the axes
    along which only some ranks need to hold the tensor, such as pp.  If one rank holds a part, all
    ranks with the same coordinates as this rank along `free_from` should hold one.
    """
    layout = held[0][1].layout
    rectangle = next((p for p in layout if isinstance(p, Slices)), None)
    if rectangle is not None:
        volume = sum(math.prod(group[0][1].shape) for group in _groups(held).values())
        terms = math.prod(trace.sizes[p.axis] for p in layout if isinstance(p, Partial))
        return volume == math.prod(rectangle.shape) * terms
    _, flat = split_flat(layout)
    if flat is not None:
        return _ranges_complete(trace, held, flat.axes, free_from)
    mesh = trace.sizes.mesh
    named = mesh.expand(axis for p in layout for axis in axes_of(p))
    # Only the stages that hold a copy of a parameter contribute to a sum over pp.
    stages_over = mesh.members("pp")
    free = [a for a in mesh.expand(free_from) if a in stages_over or a not in named]
    bound = math.prod(size for axis, size in trace.sizes.items() if axis not in free)
    stages = {tuple(rank.coordinates[axis] for axis in free) for rank, _ in held}
    expected = bound * len(stages)
    for owned in (p for p in layout if isinstance(p, Owned)):
        owners = {owned.owner(rank.coordinates, trace.sizes) for rank, _ in held}
        expected = expected * len(owners) // owned.parts
    return len(held) == expected


def _ranges_complete(
    trace: Trace, held: Sequence[Holder], axes: Sequence[str], free_from: Sequence[str]
) -> bool:
    """Whether each set of ranks that splits a flattened tensor over `axes` holds all its elements.

    False if two sets split the tensor into different ranges.  `free_from` is as for `_complete`.
    """
    mesh = trace.sizes.mesh
    axes = mesh.expand(axes)
    named = mesh.expand(axis for p in held[0][1].layout for axis in axes_of(p))
    free = [axis for axis in mesh.expand(free_from) if axis not in named and axis not in axes]
    sets: dict[tuple[int, ...], set[tuple[int, int]]] = {}
    for rank, event in held:
        _, flat = split_flat(event.layout)
        assert flat is not None
        elsewhere = tuple(at for axis, at in rank.coordinates.items() if axis not in axes)
        sets.setdefault(elsewhere, set()).add((flat.offset, flat.length))
        if event.shape != (flat.length,):
            return False
    assert flat is not None
    elements = math.prod(flat.shape)
    cuts = {tuple(sorted(runs)) for runs in sets.values()}
    if len(cuts) > 1:
        return False  # stages may split their copies differently: sketches then do not add up
    end = 0
    for offset, length in cuts.pop():
        if offset != end:
            return False
        end += length
    stages = {tuple(rank.coordinates[axis] for axis in free) for rank, _ in held}
    apart = (axis for axis in trace.sizes if axis not in free and axis not in axes)
    bound = math.prod(trace.sizes[axis] for axis in apart)
    return end == elements and len(sets) == bound * len(stages)
