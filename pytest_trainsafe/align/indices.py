"""The arithmetic of Layouts: which elements of the logical tensor a rank holds.

Called by merge, by the consistent tensors of the recorder, and by the judges.  A layout splits
each dimension on its own, so a rank's part is one increasing index array per dimension.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pytest_trainsafe.align.layout import (
    Coordinates,
    Layout,
    Partial,
    Shard,
    Sizes,
    Slices,
    ZigZag,
)

Indices = npt.NDArray[np.int64]


class LayoutError(ValueError):
    """A layout does not fit the tensor or the mesh it is used for."""


def index_arrays(
    layout: Layout, coordinates: Coordinates, sizes: Sizes, logical_shape: Sequence[int]
) -> list[Indices]:
    """The logical indices that one rank holds: an increasing array per dimension.

    Placements of the same dimension nest, outermost first: each cuts what the ones before it
    left to this rank.  Raises LayoutError when a placement does not fit the shape.
    """
    arrays = [np.arange(length, dtype=np.int64) for length in logical_shape]
    for placement in layout:
        if isinstance(placement, Slices):
            if placement.shape != tuple(logical_shape):
                raise LayoutError(f"{placement} is not a part of a tensor of {logical_shape}")
            for dim, start in enumerate(placement.offsets):
                arrays[dim] = arrays[dim][start : start + placement.lengths[dim]]
        elif not isinstance(placement, Partial):
            if not 0 <= placement.dim < len(arrays):
                raise LayoutError(f"{placement} does not fit a tensor of {len(arrays)} dimensions")
            kept = _positions(placement, coordinates, sizes, len(arrays[placement.dim]))
            arrays[placement.dim] = arrays[placement.dim][kept]
    return arrays


def local_shape(
    layout: Layout, coordinates: Coordinates, sizes: Sizes, logical_shape: Sequence[int]
) -> tuple[int, ...]:
    """The shape of one rank's part of a tensor of `logical_shape`."""
    return tuple(map(len, index_arrays(layout, coordinates, sizes, logical_shape)))


def logical_shape(
    held: Sequence[tuple[Layout, Coordinates, tuple[int, ...]]], sizes: Sizes
) -> tuple[int, ...]:
    """The shape of the logical tensor, from what ranks hold: layout, coordinates, local shape.

    A dimension's length is the sum over its parts; while a part is absent, it is the length
    that explains the parts there are (the largest such: equal parts).
    Raises LayoutError when replicas have different lengths.
    """
    layout, _, first = held[0]
    for placement in layout:
        if isinstance(placement, Slices):
            return placement.shape
    shape = []
    for dim in range(len(first)):
        splits = [p for p in layout if isinstance(p, Shard | ZigZag) and p.dim == dim]
        axes = list(dict.fromkeys(p.axis for p in splits))
        lengths: dict[tuple[int, ...], int] = {}
        for _, coordinates, local in held:
            where = tuple(coordinates[axis] for axis in axes)
            if lengths.setdefault(where, local[dim]) != local[dim]:
                raise LayoutError(
                    f"dimension {dim} has {lengths[where]} rows on one replica "
                    f"and {local[dim]} on another"
                )
        parts = math.prod(sizes[axis] for axis in axes)
        if splits and isinstance(splits[0], Shard) and splits[0].blocks:
            shape.append(sum(splits[0].blocks))
        elif len(lengths) == parts:
            shape.append(sum(lengths.values()))
        else:
            shape.append(parts * max(lengths.values()))
    return tuple(shape)


def scale_shape(shape: Sequence[int], layout: Layout, sizes: Sizes) -> tuple[int, ...]:
    """The logical shape, from one rank's local shape where every cut is even.

    Raises LayoutError when a placement names a dimension that is not there.
    """
    whole = list(shape)
    for placement in layout:
        match placement:
            case Slices():
                return placement.shape
            case Shard() | ZigZag():
                if not 0 <= placement.dim < len(whole):
                    raise LayoutError(
                        f"{placement} does not fit a tensor of {len(whole)} dimensions"
                    )
                whole[placement.dim] *= sizes[placement.axis]
    return tuple(whole)


def extract(
    full: torch.Tensor, layout: Layout, coordinates: Coordinates, sizes: Sizes
) -> torch.Tensor:
    """One rank's part of a full tensor; a view of it where the part is a rectangle.

    Of a Partial (sum), coordinate 0 gets the values and the others zeros.
    """
    part = full
    for dim, array in enumerate(index_arrays(layout, coordinates, sizes, full.shape)):
        ranges = list(runs(array))
        if len(ranges) == 1:
            part = part.narrow(dim, *ranges[0])
        else:
            part = part.index_select(dim, torch.from_numpy(array).to(full.device))
    if any(isinstance(p, Partial) and p.op == "sum" and coordinates[p.axis] for p in layout):
        return torch.zeros_like(part)
    return part


def insert(
    full: torch.Tensor,
    part: torch.Tensor,
    arrays: Sequence[Indices],
    add: bool = False,
) -> None:
    """Write (or `add`) a part into the full tensor at its `index_arrays`, in place."""
    for block in itertools.product(*(placed_runs(array) for array in arrays)):
        target, source = full, part
        for dim, (there, here, length) in enumerate(block):
            target = target.narrow(dim, there, length)
            source = source.narrow(dim, here, length)
        if add:
            target.add_(source)
        else:
            target.copy_(source)


def _positions(
    placement: Shard | ZigZag, coordinates: Coordinates, sizes: Sizes, length: int
) -> Any:
    """What a placement keeps of a dimension of `length`: a slice or an index array."""
    if placement.axis not in sizes or placement.axis not in coordinates:
        raise LayoutError(f"{placement} names an axis that is none of {', '.join(sizes)}")
    ranks, rank = sizes[placement.axis], coordinates[placement.axis]
    if isinstance(placement, ZigZag):
        chunks = (_chunk(length, 2 * ranks, rank), _chunk(length, 2 * ranks, 2 * ranks - 1 - rank))
        return np.r_[chunks]
    if not placement.blocks:
        return _chunk(length, ranks, rank)
    if sum(placement.blocks) != length:
        raise LayoutError(f"{placement}: the blocks make {sum(placement.blocks)}, not {length}")
    starts = itertools.accumulate(placement.blocks, initial=0)
    return np.concatenate(
        [
            start + np.arange(block)[_chunk(block, ranks, rank)]
            for start, block in zip(starts, placement.blocks, strict=False)
        ]
    )


def _chunk(length: int, parts: int, index: int) -> slice:
    """The chunk that `torch.chunk` gives: equal sizes, rounded up, until nothing is left."""
    size = -(-length // parts)
    return slice(min(index * size, length), min((index + 1) * size, length))


def runs(array: Indices) -> Iterator[tuple[int, int]]:
    """The maximal contiguous ranges of an increasing array: (start, length)."""
    if len(array) == 0:
        yield 0, 0
    elif array[-1] - array[0] + 1 == len(array):
        yield int(array[0]), len(array)
    else:
        for run in np.split(array, np.flatnonzero(np.diff(array) != 1) + 1):
            yield int(run[0]), len(run)


def placed_runs(array: Indices) -> list[tuple[int, int, int]]:
    """The runs with their positions in the part: (in the full tensor, in the part, length)."""
    placed, here = [], 0
    for there, length in runs(array):
        placed.append((there, here, length))
        here += length
    return placed
