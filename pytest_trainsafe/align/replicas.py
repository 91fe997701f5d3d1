"""Compares replicas exactly.  Called by merge.

Replicas come from the same computation or the same collective, so no rounding is allowed: a
single different bit is a finding.  All NaNs count as equal.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from pytest_trainsafe.core.indices import Indices
from pytest_trainsafe.core.layout import Coordinates
from pytest_trainsafe.core.rungs.arithmetic import Arithmetic
from pytest_trainsafe.core.rungs.floating import FLOATING
from pytest_trainsafe.core.usage import in_print, name_ranks

Replica = tuple[int, Coordinates, torch.Tensor]

BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def replica_message(
    replicas: Sequence[Replica], arrays: Sequence[Indices], numbers: Arithmetic = FLOATING
) -> str | None:
    """Describes how replicas differ; None if all are equal.

    `arrays` are the logical indices that the replicas hold.  The message names the ranks that
    differ from the first, and the axes over which they differ.  For the first such rank it gives
    the number of elements that differ, the logical index of the first of them, and the largest
    difference with the values that differ by it, unless `numbers` are exact and have no size.
    """
    reference_rank, _, reference = replicas[0]
    different = [
        (rank, tensor, unequal)
        for rank, _, tensor in replicas[1:]
        if bool((unequal := differing(reference, tensor)).any())
    ]
    if not different:
        return None
    ranks = [rank for rank, *_ in different]
    first_rank, tensor, unequal = different[0]
    places = np.argwhere(unequal.numpy())
    logical = _logical(arrays, places[0])
    row = f"row {logical[0]}, " if logical else ""
    text = (
        f"replicas over {' and '.join(_axes(replicas))} differ: {name_ranks(ranks)} from "
        f"rank {reference_rank}; on rank {first_rank}, {int(unequal.sum())} of "
        f"{unequal.numel()} elements differ, the first at {row}index {logical}"
    )
    if numbers.exact:
        return text
    largest, at = _largest(tensor[unequal], reference[unequal])
    worst = tuple(map(int, places[at]))
    most = "" if at == 0 else f", at index {_logical(arrays, places[at])}"
    values = " against ".join(in_print(tensor[worst].item(), reference[worst].item()))
    return f"{text}; largest difference {largest}{most} ({values})"


def _logical(arrays: Sequence[Indices], place: npt.NDArray[np.int64]) -> list[int]:
    """The logical index of an element of a part."""
    return [int(array[i]) for array, i in zip(arrays, place, strict=True)]


def differing(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """A bool tensor that is true where the bits of two tensors differ; NaNs are equal."""
    if left.dtype != right.dtype:
        left, right = left.to(torch.float64), right.to(torch.float64)
    if left.is_complex():
        pair = differing(torch.view_as_real(left), torch.view_as_real(right))
        return pair.any(dim=-1)
    bits = BITS[left.element_size()]
    unequal = left.contiguous().view(bits) != right.contiguous().view(bits)
    if left.dtype.is_floating_point and bool(unequal.any()):
        wide = torch.promote_types(
            torch.float32, left.dtype if left.itemsize > 2 else torch.float32
        )
        unequal &= ~(left.to(wide).isnan() & right.to(wide).isnan())
    return unequal


def _axes(replicas: Sequence[Replica]) -> list[str]:
    """The axes along which the values change from a replica to its neighbour."""
    classes: list[torch.Tensor] = []
    steps: dict[str, bool] = {}
    seen: list[tuple[Coordinates, int]] = []
    for _, there, tensor in replicas:
        same = (n for n, other in enumerate(classes) if not bool(differing(tensor, other).any()))
        number = next(same, len(classes))
        if number == len(classes):
            classes.append(tensor)
        for other, seen_class in seen:
            apart = [axis for axis in there if there[axis] != other[axis]]
            if len(apart) == 1:
                steps[apart[0]] = steps.get(apart[0], False) or seen_class != number
        seen.append((there, number))
    axes = [axis for axis, changes in steps.items() if changes]
    return axes or list(dict.fromkeys(a for c, _ in seen for a in c if c[a] != seen[0][0][a]))


def _largest(left: torch.Tensor, right: torch.Tensor) -> tuple[str, int]:
    """The largest difference between elements that differ, and the number of its element."""
    wide = torch.complex128 if left.is_complex() else torch.float64
    distance = (left.to(wide) - right.to(wide)).abs().nan_to_num(nan=float("inf"))
    place = int(distance.argmax())
    largest = distance[place].item()
    return f"{largest:.3g}" if largest else "0 (only the sign of zero differs)", place
