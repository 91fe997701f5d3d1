"""What an event may say: whatever else it says is a fault of the trace, found when it is opened.

Called by the reader for every event, before anything else uses it: align and the judges reserve
memory for the shapes and look up the axes that events name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import msgspec
import torch

from pytest_trainsafe.align.layout import (
    Flat,
    Layout,
    Owned,
    Shard,
    Sizes,
    Slices,
    ZigZag,
    axes_of,
)
from pytest_trainsafe.trace.schema import NoteEvent, TensorEvent
from pytest_trainsafe.untrusted import MALFORMED

#: Every dtype that torch has, by the name it has in a trace.
DTYPES: Mapping[str, torch.dtype] = {
    str(value).removeprefix("torch."): value
    for value in vars(torch).values()
    if isinstance(value, torch.dtype)
}

#: Elements up to which a tensor may be of any shape, since little memory is at stake, and beyond
#: which no tensor is recorded: more than any device holds.
FEW_ELEMENTS, MOST_ELEMENTS = 2**28, 2**40

#: How many times the elements of all its parts a logical tensor may have, for each rank: parts
#: may be missing.
MOST_TIMES = 64

#: Most placements of a layout; those that are known have at most one for each axis and kind.
MOST_PLACEMENTS = 16

_DTYPE = "(float64|float32|float16|bfloat16|float8)"

#: The notes whose values others take apart, and their forms.
_NOTES = {
    "narrowed": re.compile(rf"{_DTYPE} .*", re.DOTALL),
    "quantised": re.compile(r"float8 .*", re.DOTALL),
    "caller": re.compile(r"[^=]+=.*", re.DOTALL),
}


def fault_of_tensor(event: TensorEvent, sizes: Sizes) -> str | None:
    """What is wrong with a tensor's event by itself; None for a sound one."""
    if event.dtype not in DTYPES:
        return f"{event.id} has the unknown dtype {event.dtype!r}"
    if event.id.kind == "update":
        return f"{event.id} is derived and never recorded"
    if math.prod(event.shape) > MOST_ELEMENTS or math.prod(event.logical) > MOST_ELEMENTS:
        return f"{event.id} has more than {MOST_ELEMENTS} elements"
    if event.sketch >= 0 and event.key:
        return f"{event.id} has both values and a sketch"
    if (event.sketch >= 0 or event.key) and not event.file:
        return f"{event.id} names no file"
    if event.file and event.sketch < 0 and not event.key:
        return f"{event.id} names a file and no entry of it"
    return fault_of_layout(event.layout, sizes) if event.layout else None


def fault_of_layout(layout: Layout, sizes: Sizes) -> str | None:
    """What no layout of any tensor says; whether it fits one tensor is for align to judge."""
    if len(layout) > MOST_PLACEMENTS:
        return f"its layout has {len(layout)} placements"
    for placement in layout:
        axes = placement.axes if isinstance(placement, Owned) else axes_of(placement)
        axes = axes or (getattr(placement, "axis", "tp"),)
        if unknown := [axis for axis in axes if axis not in sizes]:
            return f"its layout names the axis {unknown[0]!r}, which is none of {', '.join(sizes)}"
        if isinstance(placement, Slices) and not (
            len(placement.offsets) == len(placement.lengths) == len(placement.shape)
        ):
            return f"{placement} does not say one offset, length and size for each dimension"
    return None


def fault_of_note(event: NoteEvent) -> str | None:
    """What is wrong with a note; None for a sound one, or of a key that nobody takes apart."""
    form = _NOTES.get(event.key)
    if form is not None and not form.fullmatch(event.value):
        return f"the note {event.key!r} does not have its form: {event.value[:80]!r}"
    if event.key == "annotations":
        try:
            msgspec.json.decode(event.value, type=dict[str, str])
        except MALFORMED as error:
            return f"the note {event.key!r} does not have its form: {error}"
    return None


def extent(event: TensorEvent, sizes: Sizes) -> int:
    """Elements that the logical tensor has at most, by what one part says of it.

    A dimension of no length counts as one, so that no other can be of any length beside it.
    """
    found = math.prod(max(1, length) for length in event.shape)
    for placement in event.layout:
        match placement:
            case Shard() | ZigZag():
                found *= sizes[placement.axis]
                if isinstance(placement, Shard) and placement.blocks:
                    found = max(found, sum(placement.blocks))
            case Slices() | Flat():
                found = max(found, math.prod(max(1, length) for length in placement.shape))
    return found
