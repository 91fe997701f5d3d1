"""Counts the elements of a wrong tensor that differ, and finds the greatest difference.

Called by the compare judge for tensors that fail.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch

from pytest_trainsafe.core.finding import Mismatch

#: The number of elements compared at a time, which bounds the memory of the differences.
BLOCK = 2**18


def mismatch_of(
    candidate: torch.Tensor, reference: torch.Tensor, rounding: float
) -> Mismatch | None:
    """The Mismatch of a candidate's logical tensor; None for different shapes or no elements.

    `rounding` is the absolute norm of the error that rounding may explain in the whole tensor, 0
    for none.  An equal share of it is allowed for each element.
    """
    if candidate.shape != reference.shape or reference.numel() == 0:
        return None
    threshold = rounding / math.sqrt(reference.numel())
    ours, theirs = candidate.reshape(-1), reference.reshape(-1)
    differing, greatest, place = 0, -1.0, 0
    for start in range(0, reference.numel(), BLOCK):
        difference = _differences(ours[start : start + BLOCK], theirs[start : start + BLOCK])
        differing += int((~(difference <= threshold)).sum())
        worst = int(np.where(np.isnan(difference), np.inf, difference).argmax())
        if not difference[worst] <= greatest:
            greatest, place = float(difference[worst]), start + worst
            if not math.isfinite(greatest):
                greatest = math.inf
    return Mismatch(
        elements=reference.numel(),
        differing=differing,
        threshold=threshold,
        difference=greatest,
        index=tuple(int(i) for i in np.unravel_index(place, tuple(reference.shape))),
        value=ours[place].item(),
        expected=theirs[place].item(),
    )


def _differences(ours: torch.Tensor, theirs: torch.Tensor) -> npt.NDArray[np.float64]:
    """The absolute difference of every element; NaN if a value is NaN."""
    wide = torch.complex128 if ours.is_complex() or theirs.is_complex() else torch.float64
    left, right = ours.to(wide).numpy(), theirs.to(wide).numpy()
    with np.errstate(over="ignore", invalid="ignore"):
        found: npt.NDArray[np.float64] = np.abs(left - right)
    # Integers above 2**53 are not exact in float64, so test them for equality directly.
    if not ours.is_floating_point() and not ours.is_complex():
        unequal = (ours != theirs).numpy()
        found = np.where(unequal, np.maximum(found, 1.0), 0.0)
    return found
