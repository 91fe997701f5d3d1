"""Locates errors in regions of a logical tensor, and names the ranks that hold a region.

A region is one mask per dimension; an element belongs to it if every mask contains its index.
`confined` is the pattern if no other explains the error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from pytest_trainsafe.align.merge import Part
from pytest_trainsafe.core.finding import Pattern
from pytest_trainsafe.core.indices import LayoutError, contiguous_ranges, index_arrays
from pytest_trainsafe.core.layout import Flat, Slices, Split
from pytest_trainsafe.core.mesh import elsewhere
from pytest_trainsafe.judges.compare.patterns.partial_sum import names_axis
from pytest_trainsafe.judges.compare.patterns.wrong_tensor import WrongTensor

#: A dimension is not named if more than this share of its rows is in the region.  The limit is
#: lower if rows are single elements, half of which are within rounding by chance.
MOST = 0.75
MAX_ELEMENTS = 0.5

#: The largest number of index ranges that are listed.
MAX_RUNS = 3

#: The most ranks of an axis whose rows are listed.
MAX_HOLDERS = 4

#: The fewest wrong rows, and the fewest rows of a chunk, that show wrong borders of chunks.
FEWEST_BORDERS, FEWEST_ROWS = 2, 4

Region = list[torch.Tensor]


def confined(wrong: WrongTensor) -> Pattern | None:
    """Matches if all errors are within some rows and the rest of the tensor is correct."""
    difference = wrong.difference
    region = _wrong_rows(difference, wrong)
    words, axis = name_region(region, wrong)
    if not words:
        return None
    inside = torch.ones(difference.shape, dtype=torch.bool)
    for dim, mask in enumerate(region):
        inside &= mask.view([-1 if d == dim else 1 for d in range(difference.ndim)])
    if not wrong.settles(wrong.norm(difference.masked_fill(inside, 0))):
        return None
    short = f"wrong only in {words}"
    held = "" if axis else _holders(region, wrong)
    ends, over = _borders(region, wrong)
    if not ends and (apart := replicas_apart(wrong)):
        axes = " and ".join(apart)
        short = f"replicas over {axes} differ; the first one is {short}"
        cause = (
            f"the ranks of {axes} must agree: a sum or a copy over {axes} is missing, or they use "
            "different data"
        )
        return Pattern("confined", f"{short}{held}", axis or apart[0], cause=cause, short=short)
    if not ends:
        return Pattern("confined", f"{short}{held}", axis, short=short)
    cause = (
        f"what these rows take from their neighbours is on another rank of {over}: an exchange "
        "between the ranks is missing or wrong"
    )
    short += f", where chunks of {over} {ends}"
    return Pattern("confined", f"{short}{held}", axis or over, cause=cause, short=short)


def non_finite(wrong: WrongTensor) -> Pattern | None:
    """Matches if all values that are not finite are within some rows."""
    words, axis = name_region(region_of(~torch.isfinite(wrong.value)), wrong)
    text = f"not finite only in {words}"
    return Pattern("confined", text, axis, short=text) if words else None


def replicas_apart(wrong: WrongTensor) -> list[str]:
    """The axes whose ranks must hold the same values, but differ by more than rounding."""
    found = []
    for axis, count in wrong.sizes.items():
        if count < 2 or not wrong.parts or names_axis(wrong.parts[0], axis):
            continue
        first: dict[tuple[tuple[str, int], ...], torch.Tensor] = {}
        for part in wrong.parts:
            held = first.setdefault(elsewhere(part.coordinates, (axis,)), part.tensor)
            if held.shape == part.tensor.shape and _differ(held, part.tensor, wrong):
                found.append(axis)
                break
    return found


def _differ(left: torch.Tensor, right: torch.Tensor, wrong: WrongTensor) -> bool:
    if wrong.numbers.exact:
        return not torch.equal(left, right)
    wide = wrong.value.dtype
    return bool(torch.linalg.vector_norm(left.to(wide) - right.to(wide)) > wrong.allowed)


def region_of(marked: torch.Tensor) -> Region:
    """The smallest region that contains every marked element of a bool tensor."""
    dims = range(marked.ndim)
    return [marked.movedim(dim, 0).reshape(marked.shape[dim], -1).any(dim=1) for dim in dims]


def name_region(region: Region, wrong: WrongTensor) -> tuple[str, str]:
    """The region in words, and the mesh axis whose ranks hold it ("" if no axis does).

    ("", "") if the region covers most of the tensor.
    """
    words, axes = [], []
    for dim, mask in enumerate(region):
        most = MOST if wrong.reference.numel() > len(mask) else MAX_ELEMENTS
        if not 0 < int(mask.sum()) <= most * len(mask):
            continue
        owner, axis = _owner(dim, mask, wrong)
        words.append(_rows(dim, mask) + owner)
        axes.append(axis)
    return " and ".join(words), next(filter(None, axes), "")


def _borders(region: Region, wrong: WrongTensor) -> tuple[str, str]:
    """ "begin" or "end" if the wrong rows of a dimension are borders of chunks; and their axis.

    A chunk is a range of rows that the ranks of one coordinate hold.  The first and the last row of
    the whole dimension are no borders, and one wrong row proves nothing.  ("", "") if there is no
    dimension like this that one axis alone divides.
    """
    for dim, mask in enumerate(region):
        length, rows = len(mask), {*mask.nonzero().flatten().tolist()}
        if len(rows) < FEWEST_BORDERS:
            continue
        axes = _axes(wrong.parts, dim)
        for axis in axes if len(axes) == 1 else ():
            held = [_indices(part, dim, wrong) for part in wrong.parts]
            chunks = {run for each in held for run in contiguous_ranges(each)}
            if not chunks or min(size for _, size in chunks) < FEWEST_ROWS:
                continue
            if rows <= {start + size - 1 for start, size in chunks} - {length - 1}:
                return "end", axis
            if rows <= {start for start, _ in chunks} - {0}:
                return "begin", axis
    return "", ""


def _wrong_rows(difference: torch.Tensor, wrong: WrongTensor) -> Region:
    """Masks, one per dimension, of the rows whose error exceeds rounding."""
    region = []
    for dim, length in enumerate(difference.shape):
        errors = wrong.row_errors(dim)
        if wrong.slices:
            allowed = torch.from_numpy(wrong.slices[dim])
        else:
            allowed = torch.full_like(errors, wrong.allowed / max(length, 1) ** 0.5)
        region.append(errors > allowed)
    return region


def _rows(dim: int, mask: torch.Tensor) -> str:
    found = mask.nonzero().flatten().numpy()
    runs = _runs(found)
    if len(runs) > MAX_RUNS:
        return f"{len(found)} of {len(mask)} rows in dimension {dim} (the first is row {found[0]})"
    rows = "row" if len(found) == 1 else "rows"
    return f"{rows} {', '.join(runs)} of {len(mask)} in dimension {dim}"


def _runs(indices: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[str]:
    """Sorted indices as ranges: `0-7`, `12`."""
    spans = ((start, start + length - 1) for start, length in contiguous_ranges(indices))
    return [str(a) if a == b else f"{a}-{b}" for a, b in spans]


def _owner(dim: int, mask: torch.Tensor, wrong: WrongTensor) -> tuple[str, str]:
    """The ranks along one axis that hold the rows of a region, in words, and the axis.

    `mask` marks the region's rows in dimension `dim`.  ("", "") if the rows are spread over all
    ranks along every axis.
    """
    hit = [part for part in wrong.parts if _holds(part, dim, mask, wrong)]
    for axis in _axes(wrong.parts, dim):
        there = sorted({part.coordinates[axis] for part in hit})
        if there and len(there) < wrong.sizes[axis]:
            ranks = ", ".join(map(str, there))
            parts, name = ("parts", "ranks") if len(there) > 1 else ("part", "rank")
            whole = "the" if _covers(dim, mask, hit, wrong) else "inside the"
            return f" ({whole} {parts} of {axis} {name} {ranks})", axis
    return "", ""


def _holders(region: Region, wrong: WrongTensor) -> str:
    """The rows that each rank holds of the first dimension of a region that one axis divides.

    Ranks that differ on another axis, as stages do that each have a copy, may divide it otherwise.
    "" if there is none, or if the ranks or their ranges of rows are too many.
    """
    for dim, mask in enumerate(region):
        axes = _axes(wrong.parts, dim)
        if bool(mask.all()) or len(axes) != 1 or wrong.sizes[axes[0]] > MAX_HOLDERS:
            continue
        cuts: dict[tuple[tuple[str, int], ...], dict[int, list[str]]] = {}
        for part in sorted(wrong.parts, key=lambda each: each.coordinates[axes[0]]):
            at = tuple((a, c) for a, c in part.coordinates.items() if a not in axes)
            cuts.setdefault(at, {})[part.coordinates[axes[0]]] = _runs(_indices(part, dim, wrong))
        found = {at: rows for at, rows in cuts.items() if all(rows.values())}
        whole = all(len(rows) == wrong.sizes[axes[0]] for rows in found.values())
        short = all(len(runs) <= MAX_RUNS for rows in found.values() for runs in rows.values())
        if found and whole and short:
            return f"; dimension {dim} is cut over {axes[0]}{_ways(found, wrong)}"
    return ""


def _ways(
    cuts: Mapping[tuple[tuple[str, int], ...], Mapping[int, Sequence[str]]], wrong: WrongTensor
) -> str:
    """The rows of each rank, once if they are alike at all coordinates of the other axes."""
    texts: dict[str, str] = {}
    for at, rows in cuts.items():
        held = ", ".join(f"rank {rank} has {', '.join(each)}" for rank, each in rows.items())
        where = " ".join(f"{axis}={place}" for axis, place in at if wrong.sizes[axis] > 1)
        texts.setdefault(held, where)
    if len(texts) == 1:
        return f": {next(iter(texts))}"
    return ", not alike: " + "; ".join(f"at {where}, {held}" for held, where in texts.items())


def _axes(parts: Sequence[Part], dim: int) -> list[str]:
    axes: list[str] = []
    for placement in parts[0].layout if parts else ():
        if isinstance(placement, Slices | Flat):
            axes += placement.axes
        elif isinstance(placement, Split) and placement.dim == dim:
            axes.append(placement.axis)
    return list(dict.fromkeys(axes))


def _indices(
    part: Part, dim: int, wrong: WrongTensor
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    try:
        arrays = index_arrays(part.layout, part.coordinates, wrong.sizes, wrong.reference.shape)
    except LayoutError:
        return np.empty(0, dtype=np.int64)  # merge reports this error
    return arrays[dim]


def _holds(part: Part, dim: int, mask: torch.Tensor, wrong: WrongTensor) -> bool:
    return bool(mask.numpy()[_indices(part, dim, wrong)].any())


def _covers(dim: int, mask: torch.Tensor, hit: Sequence[Part], wrong: WrongTensor) -> bool:
    return all(bool(mask.numpy()[_indices(part, dim, wrong)].all()) for part in hit)
