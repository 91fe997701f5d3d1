"""Undoes Flat placements: joins the runs of flattened tensors that ranks hold.

Called by merge before anything else.  What comes out are parts of the same logical tensor without
a Flat, one for each set of ranks that shared one out, so that the rest is a merge as ever: ranks
elsewhere (of another tp rank, or of another pipeline stage) may have cut their copy elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from pytest_trainsafe.align.replicas import replica_message
from pytest_trainsafe.core.indices import LayoutError, check_run, split_flat
from pytest_trainsafe.core.layout import Flat, Layout, Part, Sizes
from pytest_trainsafe.core.mesh import elsewhere, moved
from pytest_trainsafe.core.usage import name_ranks


@dataclass(slots=True)
class Joined:
    """The joined parts, the axes they were joined along, and what did not fit: (check, message).

    A joined part has the lowest rank of those that it was joined from, and stands for all ranks
    along `axes` with the coordinate 0.
    """

    parts: list[Part]
    axes: tuple[str, ...]
    problems: list[tuple[str, str]] = field(default_factory=list)


def join_runs(parts: Sequence[Part], sizes: Sizes) -> Joined:
    """Join the runs of all parts that share their coordinates off the Flat's axes.

    Raises LayoutError for a part that is not its run.  Elements that no rank holds are NaN (0 in
    integer tensors).
    """
    groups: dict[tuple[tuple[str, int], ...], list[_Run]] = {}
    for part in parts:
        run = _run(part)
        groups.setdefault(elsewhere(part.coordinates, run.flat.axes), []).append(run)
    joined = Joined([], next(iter(groups.values()))[0].flat.axes)
    for group in groups.values():
        joined.parts.append(_join(group, sizes, joined.problems))
    return joined


@dataclass(frozen=True, slots=True)
class _Run:
    part: Part
    flat: Flat
    outer: Layout


def _run(part: Part) -> _Run:
    outer, flat = split_flat(part.layout)
    assert flat is not None
    check_run(flat, flat.shape)
    if tuple(part.tensor.shape) != (flat.length,):
        raise LayoutError(
            f"rank {part.rank} holds {list(part.tensor.shape)} where its layout gives a run of "
            f"{flat.length} elements"
        )
    return _Run(part, flat, outer)


def _join(group: list[_Run], sizes: Sizes, problems: list[tuple[str, str]]) -> Part:
    """One set of ranks' runs as the tensor that they cut."""
    first = group[0]
    shape = first.flat.shape
    for run in group:
        if run.flat.shape != shape:
            raise LayoutError(
                f"rank {run.part.rank} holds a run of a tensor of {list(run.flat.shape)} and rank "
                f"{first.part.rank} one of {list(shape)}"
            )
    source = first.part.tensor
    missing = float("nan") if source.is_floating_point() or source.is_complex() else 0
    whole = torch.full(shape, missing, dtype=source.dtype).reshape(-1)
    count = torch.zeros(whole.shape, dtype=torch.int32)
    runs: dict[tuple[int, int], list[_Run]] = {}
    for run in group:
        runs.setdefault((run.flat.offset, run.flat.length), []).append(run)
    for (offset, length), same in reversed(runs.items()):  # where two overlap, the first stands
        whole[offset : offset + length] = same[0].part.tensor
        count[offset : offset + length] += 1
        problems.extend(_replicas(same))
    along = " and ".join(first.flat.axes)
    holders = name_ranks([run.part.rank for run in group])
    for check, verb, wrong in (
        ("overlap", f"held by more than one rank of {along}", count > 1),
        ("hole", f"held by no rank of {along}", count == 0),
    ):
        if found := int(wrong.sum()):
            at = [int(i) for i in np.unravel_index(int(wrong.nonzero()[0]), shape)]
            text = f"{found} of {count.numel()} elements are {verb}, the first at {at} of {shape}"
            problems.append((check, f"{text}; held by {holders}"))
    coordinates = first.part.coordinates
    for axis in first.flat.axes:
        coordinates = moved(coordinates, sizes, axis, 0)
    return Part(
        first.part.rank, coordinates, whole.view(shape), first.outer, first.part.layout_source
    )


def _replicas(same: Sequence[_Run]) -> list[tuple[str, str]]:
    """What is wrong with equal runs, which are replicas."""
    flat = same[0].flat
    elements = np.arange(flat.offset, flat.offset + flat.length)
    held = [(run.part.rank, run.part.coordinates, run.part.tensor) for run in same]
    message = replica_message(held, [elements])
    return [("replicas", f"flattened, {message}")] if message else []
