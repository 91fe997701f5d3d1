"""Locates an error inside a tensor if no other pattern explains it."""

from __future__ import annotations

import torch

from pytest_trainsafe.core.finding import Pattern
from pytest_trainsafe.judges.compare.explain.regions import Region, name_region, region_of
from pytest_trainsafe.judges.compare.explain.wrong_tensor import WrongTensor


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
    text = f"wrong only in {words}"
    return Pattern("confined", text, axis, short=text)


def non_finite(wrong: WrongTensor) -> Pattern | None:
    """Matches if all values that are not finite are within some rows."""
    words, axis = name_region(region_of(~torch.isfinite(wrong.value)), wrong)
    text = f"not finite only in {words}"
    return Pattern("confined", text, axis, short=text) if words else None


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
