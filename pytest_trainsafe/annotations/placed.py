"""Layouts by a function of the user's: from a rank's place in the mesh to the slices that it holds.

For an order of rows that no key of an annotation describes.  It is the mapping from parallel ranks
to shards of TTrace's section 4.1.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from pytest_trainsafe.annotations.entries import AnnotationError, Placing
from pytest_trainsafe.core.layout import Layout, Range, Slices
from pytest_trainsafe.core.usage import shown


def placed(
    function: Placing,
    axes: tuple[str, ...],
    coordinates: Mapping[str, int],
    sizes: Mapping[str, int],
    shape: Sequence[int],
    where: str,
    *,
    summed: bool = False,
) -> Layout:
    """The layout that `function` gives to a rank's tensor of `shape`.

    `axes` are the mesh axes that the function depends on, and `where` names the annotation.
    `summed` says whether ranks with the same slices hold terms of a sum, not replicas.
    Raises AnnotationError if the result is not as `Placing` says, or does not fit the tensor.
    """
    given = function(coordinates, sizes, tuple(shape))
    name = getattr(function, "__qualname__", repr(function))
    fault = f"{where}: the function {name} returns {shown(given)} for a tensor of {list(shape)}"
    if not _is_pair(given):
        raise AnnotationError(
            f"{fault}; it must return the logical shape, and a list with the slices of each "
            "dimension, as in ((8, 4), [slice(0, 4), slice(None)])"
        )
    whole, slices = given
    if not _are_lengths(whole) or not isinstance(slices, Sequence):
        raise AnnotationError(f"{fault}; the logical shape must be numbers of rows, 0 or more")
    if not len(whole) == len(slices) == len(shape):
        raise AnnotationError(
            f"{fault}; the logical shape and the list of slices must have one entry for each of "
            f"its {len(shape)} dimensions"
        )
    ranges = tuple(
        _ranges(each, length, f"{fault}; dimension {dim}")
        for dim, (each, length) in enumerate(zip(slices, whole, strict=True))
    )
    layout = Slices(ranges, tuple(whole), axes)
    if summed:
        earlier = _earlier(axes, coordinates, sizes)
        first = all(function(at, sizes, tuple(shape)) != given for at in earlier)
        layout = msgspec.structs.replace(layout, first=first)
    if layout.lengths != tuple(shape):
        raise AnnotationError(
            f"{fault}; these slices hold {list(layout.lengths)} rows, but the rank's tensor has "
            f"{list(shape)}"
        )
    return (layout,)


def _earlier(
    axes: tuple[str, ...], coordinates: Mapping[str, int], sizes: Mapping[str, int]
) -> Iterator[dict[str, int]]:
    """The coordinates of the ranks before this one along `axes`, in the order of the axes."""
    own = tuple(coordinates[axis] for axis in axes)
    for there in itertools.product(*(range(sizes[axis]) for axis in axes)):
        if there < own:
            yield {**coordinates, **dict(zip(axes, there, strict=True))}


def _ranges(given: Any, length: int, fault: str) -> tuple[Range, ...]:
    slices = [given] if isinstance(given, slice) else given
    if not isinstance(slices, Sequence) or not all(isinstance(each, slice) for each in slices):
        raise AnnotationError(f"{fault} must be a slice or a list of slices")
    found: list[Range] = []
    end = 0
    for each in slices:
        if each.step is not None and each.step < 1:
            raise AnnotationError(f"{fault} has {each}, whose step is not 1 or more")
        start, stop, step = each.indices(length)
        rows = range(start, stop, step)
        if each.stop is not None and each.stop > length:
            raise AnnotationError(f"{fault} has {each}, but the logical tensor has {length} rows")
        if not rows:
            continue
        if start < end:
            raise AnnotationError(
                f"{fault} has {each} after row {end - 1}; slices must increase and not overlap"
            )
        found.append((start, stop, step))
        end = rows[-1] + 1
    return tuple(found)


def _is_pair(given: Any) -> bool:
    return isinstance(given, tuple) and len(given) == 2


def _are_lengths(whole: Any) -> bool:
    return isinstance(whole, Sequence) and all(
        isinstance(length, int) and not isinstance(length, bool) and length >= 0 for length in whole
    )
