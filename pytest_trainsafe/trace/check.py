"""Checks what each event of a trace declares, when the trace is opened.

Called by the reader for every event before anything else uses it, because align and the judges
allocate memory for the declared shapes and look up the declared axes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec
import torch

from pytest_trainsafe.core.layout import (
    Flat,
    Layout,
    Owned,
    Range,
    Scaled,
    Shard,
    Sizes,
    Slices,
    Striped,
    ZigZag,
    axes_of,
)
from pytest_trainsafe.core.mesh import mesh_of
from pytest_trainsafe.trace.schema import TensorEvent

#: Every dtype that torch has, by the name it has in a trace.
DTYPES: Mapping[str, torch.dtype] = {
    str(value).removeprefix("torch."): value
    for value in vars(torch).values()
    if isinstance(value, torch.dtype)
}

#: Tensors of at most FEW_ELEMENTS may declare any shape, because little memory is at stake.
#: Tensors of more than MAX_ELEMENTS, more than any device holds, are rejected.
FEW_ELEMENTS, MAX_ELEMENTS = 2**26, 2**40

#: A logical tensor may declare at most this many times as many elements as were recorded, for each
#: rank.  It may declare more than were recorded because parts may be missing.
MAX_TIMES = 64

#: Maximum number of placements in a layout; real layouts have at most one for each axis and kind.
MAX_PLACEMENTS = 16

#: Maximum number of slices in one placement.
MAX_RANGES = 2**16

#: Maximum number of cached layouts.
_MAX_KNOWN = 4096


class TensorCheck:
    """Checks tensor events; `sizes` are the sizes of the mesh axes.

    Many events have the same layout, so the result of checking a layout is cached.
    """

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes
        self._known: dict[Layout, _Facts] = {}

    def fault(self, event: TensorEvent) -> str | None:
        """What is wrong with an event, regardless of other events; None if it is valid."""
        if event.dtype not in DTYPES:
            return f"{event.id} has the unknown dtype {event.dtype!r}"
        if event.encoded is not None and event.encoded.dtype not in DTYPES:
            return f"{event.id} is stored in the unknown dtype {event.encoded.dtype!r}"
        if event.id.kind == "update":
            return f"{event.id} has the kind update, which is computed and never recorded"
        if event.id.kind == "input" and event.id.microbatch is None:
            return f"{event.id} is an input without a micro-batch"
        largest = math.prod(event.shape)
        if event.logical:
            largest = max(largest, math.prod(event.logical))
        if event.encoded is not None:
            largest = max(largest, math.prod(event.encoded.shape))
        if largest > MAX_ELEMENTS:
            return f"{event.id} has more than {MAX_ELEMENTS} elements"
        if bool(event.file) != bool(event.key or event.sketch >= 0):
            return f"{event.id} must have both a file and a position in it, or neither"
        if event.key and event.sketch >= 0:
            return f"{event.id} has both values and a sketch"
        fault = self._facts(event.layout).fault if event.layout else ""
        return f"{event.id}: {fault}" if fault else None

    def extent(self, event: TensorEvent) -> int:
        """The largest number of elements that the logical tensor of a valid event can have.

        The event describes one rank's part, and its layout says how the tensor is divided.  A
        dimension of length 0 counts as 1: otherwise the other lengths would not be bounded.
        """
        shape = event.shape
        own = _extent(shape) if 0 in shape else math.prod(shape)
        if not event.layout:
            return own
        facts = self._facts(event.layout)
        return max(own * facts.parts, facts.declared)

    def _facts(self, layout: Layout) -> _Facts:
        found = self._known.get(layout)
        if found is None:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            found = self._known[layout] = _facts_of(layout, self._sizes)
        return found


class _Facts(msgspec.Struct, frozen=True):
    """Cached properties of a layout: what is wrong with it, and the sizes that it declares.

    `fault` is "" for a valid layout.  `parts` is the number of parts that the layout splits the
    tensor into.  Some placements declare a size: the blocks of a Shard add up to the length of a
    dimension, and Slices and Flat have a shape.  `declared` is the largest number of elements that
    one placement declares, and 1 if no placement declares a size.
    """

    fault: str = ""
    parts: int = 1
    declared: int = 1


def _facts_of(layout: Layout, sizes: Sizes) -> _Facts:
    """Checks a layout against the mesh; align checks later whether it fits the tensor."""
    if len(layout) > MAX_PLACEMENTS:
        return _Facts(f"its layout has {len(layout)} placements")
    parts = declared = 1
    for placement in layout:
        axes = (placement.axis,) if isinstance(placement, Scaled) else axes_of(placement)
        axes = placement.axes if isinstance(placement, Owned) else axes
        names = mesh_of(sizes).of_layouts
        if unknown := [axis for axis in axes if axis not in names]:
            known = ", ".join(sizes)
            return _Facts(f"its layout names the axis {unknown[0]!r}, which is not one of {known}")
        match placement:
            case Shard() | ZigZag() | Striped():
                parts *= sizes[placement.axis]
                blocks = placement.blocks if isinstance(placement, Shard) else ()
                declared = max(declared, sum(blocks))
            case Slices(ranges, shape):
                if fault := _fault_of(ranges, shape):
                    return _Facts(fault)
                declared = max(declared, _extent(shape))
            case Flat(_, _, shape):
                declared = max(declared, _extent(shape))
    return _Facts("", parts, declared)


def _fault_of(ranges: Sequence[Sequence[Range]], shape: Sequence[int]) -> str:
    """Why explicit slices are not increasing indices of a tensor of `shape`; "" if they are."""
    if len(ranges) != len(shape):
        return "its layout does not have slices for each dimension"
    if sum(map(len, ranges)) > MAX_RANGES:
        return f"its layout has more than {MAX_RANGES} slices"
    for each, length in zip(ranges, shape, strict=True):
        end = 0
        for start, stop, step in each:
            held = range(start, stop, step)
            if held and not end <= start <= held[-1] < length:
                return (
                    f"its layout has the slice {start}:{stop}:{step} of {length} rows out of order"
                )
            end = held[-1] + 1 if held else end
    return ""


def _extent(shape: Sequence[int]) -> int:
    return math.prod(max(1, length) for length in shape)
