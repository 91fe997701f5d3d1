"""Joins the ranges of flattened tensors that ranks hold.

A Flat in the layout of a part says that the part is a range of a flattened tensor.  A set of ranks
that splits one tensor into ranges becomes one part, whose layout has no Flat.  There may be several
such sets (one for each tp rank or pipeline stage), and each may split the tensor differently.
Called by merge, which then merges the joined parts as usual.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import torch

from pytest_trainsafe.align.replicas import replica_message
from pytest_trainsafe.core.indices import LayoutError, check_range, split_flat
from pytest_trainsafe.core.layout import Flat, Layout, Part, Sizes
from pytest_trainsafe.core.mesh import elsewhere, moved
from pytest_trainsafe.core.rungs.arithmetic import Arithmetic
from pytest_trainsafe.core.rungs.floating import FLOATING
from pytest_trainsafe.core.usage import name_ranks


@dataclass(slots=True)
class Joined:
    """The joined parts, the axes they were joined along, and problems as (check, message).

    A joined part has the lowest rank of its sources; its coordinate along `axes` is 0.  `missing`
    masks, by the rank of a joined part, the elements that no rank holds, which are zero.
    """

    parts: list[Part]
    axes: tuple[str, ...]
    problems: list[tuple[str, str]] = field(default_factory=list)
    missing: dict[int, torch.Tensor] = field(default_factory=dict)

    def holes(self) -> list[Part]:
        """The parts with a 1 for each element that no rank holds, and zeros elsewhere."""
        return [
            msgspec.structs.replace(part, tensor=self._holes(part).to(torch.int64))
            for part in self.parts
        ]

    def _holes(self, part: Part) -> torch.Tensor:
        return self.missing.get(part.rank, torch.zeros(part.tensor.shape, dtype=torch.bool))


def join_ranges(parts: Sequence[Part], sizes: Sizes, numbers: Arithmetic = FLOATING) -> Joined:
    """Joins parts that are ranges of one flattened tensor; each part has a Flat in its layout.

    Parts are joined if the coordinates of their ranks differ only along `Flat.axes`.  Raises
    LayoutError for a part whose length is not that of its range.  `numbers` is the arithmetic of
    the rung.
    """
    groups: dict[tuple[tuple[str, int], ...], list[_FlatRange]] = {}
    for part in parts:
        piece = _flat_range(part)
        groups.setdefault(elsewhere(part.coordinates, piece.flat.axes), []).append(piece)
    joined = Joined([], next(iter(groups.values()))[0].flat.axes)
    for group in groups.values():
        joined.parts.append(_join(group, sizes, joined, numbers))
    return joined


@dataclass(frozen=True, slots=True)
class _FlatRange:
    part: Part
    flat: Flat
    outer: Layout


def _flat_range(part: Part) -> _FlatRange:
    outer, flat = split_flat(part.layout)
    assert flat is not None
    check_range(flat, flat.shape)
    if tuple(part.tensor.shape) != (flat.length,):
        raise LayoutError(
            f"rank {part.rank} holds a tensor of shape {list(part.tensor.shape)}, but its layout "
            f"describes a range of {flat.length} elements"
        )
    return _FlatRange(part, flat, outer)


def _join(group: list[_FlatRange], sizes: Sizes, joined: Joined, numbers: Arithmetic) -> Part:
    """Joins the ranges of one set of ranks; adds problems and missing elements to `joined`."""
    first = group[0]
    shape = first.flat.shape
    for piece in group:
        if piece.flat.shape != shape:
            raise LayoutError(
                f"rank {piece.part.rank} holds a range of a tensor of shape "
                f"{list(piece.flat.shape)}, but rank {first.part.rank} holds a range of a tensor "
                f"of shape {list(shape)}"
            )
    whole = torch.zeros(shape, dtype=first.part.tensor.dtype).reshape(-1)
    count = torch.zeros(whole.shape, dtype=torch.int32)
    pieces: dict[tuple[int, int], list[_FlatRange]] = {}
    for piece in group:
        pieces.setdefault((piece.flat.offset, piece.flat.length), []).append(piece)
    for (offset, length), same in reversed(pieces.items()):  # if two overlap, the first one wins
        whole[offset : offset + length] = same[0].part.tensor
        count[offset : offset + length] += 1
        joined.problems.extend(_replicas(same, numbers))
    along = " and ".join(first.flat.axes)
    holders = name_ranks([piece.part.rank for piece in group])
    for check, verb, wrong in (
        ("overlap", f"held by more than one rank of {along}", count > 1),
        ("hole", f"held by no rank of {along}", count == 0),
    ):
        if found := int(wrong.sum()):
            at = [int(i) for i in np.unravel_index(int(wrong.nonzero()[0]), shape)]
            text = f"{found} of {count.numel()} elements are {verb}, the first at {at}"
            joined.problems.append((check, f"{text}; the tensor is held by {holders}"))
    if bool((count == 0).any()):
        joined.missing[first.part.rank] = (count == 0).view(shape)
    coordinates = first.part.coordinates
    for axis in first.flat.axes:
        coordinates = moved(coordinates, sizes, axis, 0)
    return Part(
        first.part.rank, coordinates, whole.view(shape), first.outer, first.part.layout_source
    )


def _replicas(same: Sequence[_FlatRange], numbers: Arithmetic) -> list[tuple[str, str]]:
    """Returns one problem if the values of replicas (ranks with the same range) differ; else [].

    A problem is the name of a check, here "replicas", and a message.
    """
    flat = same[0].flat
    elements = np.arange(flat.offset, flat.offset + flat.length)
    held = [(piece.part.rank, piece.part.coordinates, piece.part.tensor) for piece in same]
    message = replica_message(held, [elements], numbers)
    return [("replicas", f"in the flattened tensor, {message}")] if message else []
