"""Describes layouts, and the rows of a tensor, in the messages of findings.  Called by merge."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_trainsafe.core.indices import Indices, contiguous_ranges
from pytest_trainsafe.core.layout import (
    Flat,
    Layout,
    Owned,
    Partial,
    Scaled,
    Slices,
    Striped,
    ZigZag,
)
from pytest_trainsafe.core.usage import first_few, name_ranks


def describe(layout: Layout) -> str:
    """A layout in words: `dimension 0 cut over tp, partial over cp`."""
    words = []
    for placement in layout:
        match placement:
            case Partial():
                words.append(f"partial over {placement.axis}")
            case Slices():
                words.append(_slices(placement))
            case Flat():
                words.append(f"flattened and split into ranges over {' and '.join(placement.axes)}")
            case Scaled():
                words.append(f"multiplied by the size of {placement.axis}")
            case Owned():
                groups = (
                    f" groups of {placement.stride} ranks" if placement.stride > 1 else " ranks"
                )
                over = ", ".join(placement.axes)
                words.append(f"owned by one in {placement.parts}{groups} over {over}")
            case ZigZag():
                words.append(f"dimension {placement.dim} cut in zig-zag over {placement.axis}")
            case Striped():
                words.append(f"dimension {placement.dim} dealt out in turn over {placement.axis}")
            case _:
                blocks = f" in blocks {list(placement.blocks)}" if placement.blocks else ""
                words.append(f"dimension {placement.dim} cut over {placement.axis}{blocks}")
    return ", ".join(words) or "whole on every rank"


def _slices(placement: Slices) -> str:
    """The slices of one rank: `rows 0-3, 6-7 of 16 in dimension 0 by slices over tp`."""
    cut = []
    for dim, (ranges, length) in enumerate(zip(placement.ranges, placement.shape, strict=True)):
        if ranges != ((0, length, 1),):
            spans = [_slice(*each) for each in ranges if each[0] < each[1]]
            cut.append(f"rows {first_few(spans) or 'none'} of {length} in dimension {dim}")
    over = ", ".join(placement.axes)
    return f"{' and '.join(cut) or 'all rows'} by slices over {over}"


def _slice(start: int, stop: int, step: int) -> str:
    if step == 1:
        return _span(start, stop - start)
    last = range(start, stop, step)[-1]
    return f"{start}-{last} in steps of {step}" if last > start else str(start)


def name_rows(arrays: Sequence[Indices], whole: Sequence[int]) -> str:
    """A text that names selected rows of a tensor: `rows 0-3 of 8 in dimension 0`.

    `arrays` has the selected indices of each dimension, and `whole` is the tensor's shape.  A
    dimension is left out if all of its indices are selected.  If every dimension is left out, the
    text is "any of it", which means the whole tensor in the message "no rank holds any of it".
    """
    words = []
    for dim, (array, length) in enumerate(zip(arrays, whole, strict=True)):
        if len(array) < length:
            spans = ", ".join(_span(*each) for each in contiguous_ranges(array))
            words.append(f"rows {spans} of {length} in dimension {dim}")
    return " and ".join(words) or "any of it"


def _span(start: int, length: int) -> str:
    return str(start) if length == 1 else f"{start}-{start + length - 1}"


def too_many_rows(
    ranks: Sequence[int], has: int, together: int, length: int, where: str, parts: int
) -> str:
    """The message if parts have more rows than the reference, or a few more together; else "".

    `ranks` hold `has` rows each, and all `parts` together `together` of `length` rows; `where` says
    which rows, as in "of dimension 0".
    """
    if has > length:
        who, rows = f"{name_ranks(ranks)} {_hold(ranks)}", has
    elif length < together < length + parts:
        who, rows = "all ranks together hold", together
    else:
        return ""
    return (
        f"{who} {rows} rows {where}, but the reference has {length}; if this is padding, pad alike "
        "at every Point, to a multiple that does not depend on the number of ranks"
    )


def wrong_rows(
    check: str, ranks: Sequence[int], has: int, due: int, length: int, where: str
) -> str:
    """The message if parts are longer ("overlap") or shorter ("hole") than the layout allows."""
    verb = "hold rows twice" if check == "overlap" else "leave rows that no rank holds"
    text = (
        f"the parts {verb}: {name_ranks(ranks)} {_hold(ranks)} {has} of the {length} rows {where}, "
        f"but the layout gives {due}"
    )
    if has == due - 1 and length % due:  # rounded down where the layout gives the first ranks more
        text += (
            f". {length} rows cannot be cut evenly here: distribute the remainder, or exclude such "
            "Points with @requires(divides(PARAMETER, AXIS)) at the program (both are in the "
            "package pytest_trainsafe)"
        )
    return text


def _hold(ranks: Sequence[int]) -> str:
    return "hold" if len(ranks) > 1 else "holds"
