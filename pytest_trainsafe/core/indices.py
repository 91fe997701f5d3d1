"""Index arithmetic of Layouts: which elements of the logical tensor a rank holds.

Used where parts are cut from a logical tensor or merged into it: by merge, by the recorder and by
the judges.  A layout splits each dimension independently, so a rank's part is given by one
increasing index array per dimension.  A Flat takes a contiguous range of the elements that these
arrays select.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pytest_trainsafe.core.layout import (
    Coordinates,
    Flat,
    Layout,
    Partial,
    Scaled,
    Shard,
    Sizes,
    Slices,
    Split,
    Striped,
    ZigZag,
    axes_of,
)
from pytest_trainsafe.core.mesh import OverMesh
from pytest_trainsafe.errors import TrainsafeError

Indices = npt.NDArray[np.int64]


class LayoutError(TrainsafeError, ValueError):
    """A layout does not fit the tensor or the mesh that it is applied to."""


def index_arrays(
    layout: Layout, coordinates: Coordinates, sizes: Sizes, logical_shape: Sequence[int]
) -> list[Indices]:
    """The logical indices that one rank holds: one increasing array per dimension.

    Placements of the same dimension nest, outermost first: each one splits what the previous
    ones left to this rank.  For a Flat, the arrays span the smallest box that contains its range.
    Raises LayoutError if a placement does not fit the shape.
    """
    arrays = [np.arange(length, dtype=np.int64) for length in logical_shape]
    for placement in layout:
        if isinstance(placement, Slices):
            if placement.shape != tuple(logical_shape):
                raise LayoutError(
                    f"{placement} is not a part of a tensor of shape {list(logical_shape)}"
                )
            for dim, ranges in enumerate(placement.ranges):
                kept = [arrays[dim][start:stop:step] for start, stop, step in ranges]
                arrays[dim] = (
                    kept[0] if len(kept) == 1 else np.concatenate([*kept, arrays[dim][:0]])
                )
        elif isinstance(placement, Flat):
            check_range(placement, tuple(map(len, arrays)))
            arrays = [a[box] for a, box in zip(arrays, _box(placement), strict=True)]
        elif isinstance(placement, Split):
            if not 0 <= placement.dim < len(arrays):
                raise LayoutError(f"{placement} does not fit a tensor of {len(arrays)} dimensions")
            kept = _positions(placement, coordinates, sizes, len(arrays[placement.dim]))
            arrays[placement.dim] = arrays[placement.dim][kept]
    return arrays


def local_shape(
    layout: Layout, coordinates: Coordinates, sizes: Sizes, logical_shape: Sequence[int]
) -> tuple[int, ...]:
    """The shape of one rank's part of a tensor of `logical_shape`."""
    _, flat = split_flat(layout)
    if flat is not None:
        return (flat.length,)
    return tuple(map(len, index_arrays(layout, coordinates, sizes, logical_shape)))


def logical_shape(
    held: Sequence[tuple[Layout, Coordinates, tuple[int, ...]]], sizes: Sizes
) -> tuple[int, ...]:
    """The shape of the logical tensor, from each rank's layout, coordinates and local shape.

    The length of a split dimension is the sum over its parts.  If a part is missing, the parts
    are taken to be as long as the longest one present.
    Raises LayoutError if replicas have different lengths.
    """
    held = [_unflattened(*each) for each in held]
    layout, _, first = held[0]
    for placement in layout:
        if isinstance(placement, Slices):
            return placement.shape
    shape = []
    for dim in range(len(first)):
        splits = [p for p in layout if isinstance(p, Split) and p.dim == dim]
        axes = list(dict.fromkeys(p.axis for p in splits))
        lengths: dict[tuple[int, ...], int] = {}
        for _, coordinates, local in held:
            where = tuple(coordinates[axis] for axis in axes)
            if lengths.setdefault(where, local[dim]) != local[dim]:
                at = ", ".join(f"{axis}={number}" for axis, number in coordinates.items())
                raise LayoutError(
                    f"replicas of the tensor differ in shape: dimension {dim} has {lengths[where]} "
                    f"rows on one rank, but {local[dim]} on the rank at {at}"
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
    """The logical shape that one rank's local shape implies if every split is even.

    Raises LayoutError if a placement names a dimension that the tensor does not have.
    """
    layout, flat = split_flat(layout)
    whole = list(shape if flat is None else flat.shape)
    for placement in layout:
        match placement:
            case Slices():
                return placement.shape
            case Shard() | ZigZag() | Striped():
                if not 0 <= placement.dim < len(whole):
                    raise LayoutError(
                        f"{placement} does not fit a tensor of {len(whole)} dimensions"
                    )
                whole[placement.dim] *= sizes[placement.axis]
    return tuple(whole)


def extract(
    full: torch.Tensor, layout: Layout, coordinates: Coordinates, sizes: Sizes
) -> torch.Tensor:
    """One rank's part of a full tensor; a view of it if the part is a rectangle.

    For a Partial (sum), one of the ranks gets the values and the others get zeros (`has_zeros`).
    """
    layout, flat = split_flat(layout)
    part = full
    for dim, array in enumerate(index_arrays(layout, coordinates, sizes, full.shape)):
        ranges = list(contiguous_ranges(array))
        if len(ranges) == 1:
            part = part.narrow(dim, *ranges[0])
        else:
            part = part.index_select(dim, torch.from_numpy(array).to(full.device))
    if flat is not None:
        check_range(flat, tuple(part.shape))
        part = part.reshape(-1).narrow(0, flat.offset, flat.length)
    times = scale(layout, sizes)
    part = part if times == 1 else part * times
    return torch.zeros_like(part) if has_zeros(layout, coordinates) else part


def has_zeros(layout: Layout, coordinates: Coordinates) -> bool:
    """Whether a rank gets zeros if a tensor is made for the ranks, as one term of a sum.

    The rank at coordinate 0 gets the values, or the first one that holds the same slices.
    """
    slices = next((p for p in layout if isinstance(p, Slices)), None)
    sums = [p.axis for p in layout if isinstance(p, Partial) and p.op == "sum"]
    return any(
        not slices.first if slices is not None and axis in slices.axes else coordinates[axis] > 0
        for axis in sums
    )


def split_flat(layout: Layout) -> tuple[Layout, Flat | None]:
    """Splits a layout into its placements other than Flat, and its Flat (None if it has none).

    Raises LayoutError if a Flat is not the last placement that splits the tensor, or if it shares
    an axis with another placement.
    """
    flats = [p for p in layout if isinstance(p, Flat)]
    if not flats:
        return layout, None
    outer = tuple(p for p in layout if not isinstance(p, Flat))
    after = layout[layout.index(flats[0]) + 1 :]
    if len(flats) > 1 or any(isinstance(p, Split | Slices) for p in after):
        raise LayoutError(
            f"{flats[0]} must be the last of the placements in {layout} that split the tensor"
        )
    both = {axis for p in outer for axis in axes_of(p)} & set(flats[0].axes)
    if both:
        raise LayoutError(
            f"{flats[0]} and another placement in {layout} both act over {both.pop()}"
        )
    return outer, flats[0]


def check_range(flat: Flat, shape: Sequence[int]) -> None:
    """Raises LayoutError unless a Flat's range lies within a flattened tensor of `shape`."""
    if flat.shape != tuple(shape):
        raise LayoutError(
            f"{flat} is a range of a tensor of shape {list(flat.shape)}, but the tensor has shape "
            f"{list(shape)}"
        )
    if flat.offset < 0 or flat.length < 0 or flat.offset + flat.length > math.prod(shape):
        raise LayoutError(f"{flat} exceeds the tensor, which has {math.prod(shape)} elements")


def scale(layout: Layout, sizes: Sizes) -> int:
    """The factor by which a layout's values are larger than the logical ones."""
    return math.prod(sizes[p.axis] for p in layout if isinstance(p, Scaled))


def _unflattened(
    layout: Layout, coordinates: Coordinates, local: tuple[int, ...]
) -> tuple[Layout, Coordinates, tuple[int, ...]]:
    outer, flat = split_flat(layout)
    return outer, coordinates, local if flat is None else flat.shape


def _box(flat: Flat) -> list[slice]:
    """The smallest box around a Flat's range: one slice per dimension of its shape."""
    if not flat.length:
        return [slice(0, 0)] * len(flat.shape)
    ends = (flat.offset, flat.offset + flat.length - 1)
    first, last = (np.unravel_index(end, flat.shape) if flat.shape else () for end in ends)
    box, apart = [], False
    for start, end, length in zip(first, last, flat.shape, strict=True):
        box.append(slice(0, length) if apart else slice(int(start), int(end) + 1))
        apart = apart or start != end
    return box


def insert(
    full: torch.Tensor,
    part: torch.Tensor,
    arrays: Sequence[Indices],
    add: bool = False,
) -> None:
    """Copies a part into the full tensor at the indices `arrays`, in place; `add` adds it."""
    for block in itertools.product(*(placed_ranges(array) for array in arrays)):
        target, source = full, part
        for dim, (there, here, length) in enumerate(block):
            target = target.narrow(dim, there, length)
            source = source.narrow(dim, here, length)
        if add:
            target.add_(source)
        else:
            target.copy_(source)


def _positions(placement: Split, coordinates: Coordinates, sizes: Sizes, length: int) -> Any:
    """The positions in a dimension that a rank holds after a split: a slice or an index array."""
    known = sizes.mesh.of_layouts if isinstance(sizes, OverMesh) else {*sizes} & {*coordinates}
    if placement.axis not in known:
        raise LayoutError(f"{placement} names an axis that is not one of {', '.join(sizes)}")
    ranks, rank = sizes[placement.axis], coordinates[placement.axis]
    if isinstance(placement, Striped):
        return slice(rank, length, ranks)
    if isinstance(placement, ZigZag):
        chunks = (_chunk(length, 2 * ranks, rank), _chunk(length, 2 * ranks, 2 * ranks - 1 - rank))
        return np.r_[chunks]
    if not placement.blocks:
        return _chunk(length, ranks, rank)
    if sum(placement.blocks) != length:
        total = sum(placement.blocks)
        raise LayoutError(f"{placement}: the blocks add up to {total}, not {length}")
    starts = itertools.accumulate(placement.blocks, initial=0)
    return np.concatenate(
        [
            start + np.arange(block)[_chunk(block, ranks, rank)]
            for start, block in zip(starts, placement.blocks, strict=False)
        ]
    )


def _chunk(length: int, parts: int, index: int) -> slice:
    """The range that `torch.chunk` gives: equal sizes, rounded up, until nothing is left."""
    size = -(-length // parts)
    return slice(min(index * size, length), min((index + 1) * size, length))


def contiguous_ranges(array: Indices) -> Iterator[tuple[int, int]]:
    """Yields the start and the length of each maximal contiguous range of an increasing array."""
    if len(array) == 0:
        yield 0, 0
    elif array[-1] - array[0] + 1 == len(array):
        yield int(array[0]), len(array)
    else:
        for run in np.split(array, np.flatnonzero(np.diff(array) != 1) + 1):
            yield int(run[0]), len(run)


def placed_ranges(array: Indices) -> list[tuple[int, int, int]]:
    """The contiguous ranges of an index array: (start in the tensor, start in the part, length)."""
    placed, here = [], 0
    for there, length in contiguous_ranges(array):
        placed.append((there, here, length))
        here += length
    return placed


def nested(dim: int, axes: Sequence[str], sizes: Sizes, blocks: tuple[int, ...] = ()) -> Layout:
    """The layout of a dimension that is split over several axes, outermost first.

    `blocks` are the sizes of the blocks of the whole dimension, as in `Shard`.  Raises LayoutError
    if an axis other than the last splits a block unevenly.
    """
    layout: list[Shard] = []
    axes = [axis for axis in axes if sizes[axis] > 1]
    for axis in axes:
        layout.append(Shard(dim, axis, blocks))
        if axis != axes[-1] and any(block % sizes[axis] for block in blocks):
            raise LayoutError(f"the blocks {list(blocks)} cannot be split evenly over {axis}")
        blocks = tuple(block // sizes[axis] for block in blocks)
    return tuple(layout)
