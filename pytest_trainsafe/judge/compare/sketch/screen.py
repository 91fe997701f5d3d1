"""Judges tensors by their sketches alone: clears them, or makes them suspects.

A sketch estimates, so it never fails a tensor; a suspect is recorded again with its values and
judged by those.  Called by the compare judge for tensors whose values were not kept.
docs/tolerances.md derives how likely a wrong tensor is to be cleared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_trainsafe.align.sketched import Sketched
from pytest_trainsafe.judge.compare.tolerance.allowance import (
    LOW_PRECISION,
    PROJECTION_FLOOR,
    SAFETY,
    least_response,
)
from pytest_trainsafe.trace.tensors.sketch import COLUMNS, ROWS

#: A tensor is cleared when its estimated error is at most this share of its allowance: the
#: estimates of both may be wrong by such a factor.
CLEARED = 0.5

#: Sums of float64 in another order differ by this share of the norm; what differs by less is
#: taken for equal.
EQUAL = 1e-13

#: The standard deviation of an estimated projection, as a share of the error's norm.
_PROJECTION_DEVIATION = math.sqrt(1 / ROWS + 1 / COLUMNS)


@dataclass(frozen=True, slots=True)
class Screened:
    """What the sketches say: `ratio` is the estimated error over its allowance, `allowed` that
    allowance relative to the reference's norm."""

    cleared: bool
    ratio: float
    allowed: float


SUSPECT = Screened(False, math.inf, 0.0)


def screen_tensor(
    candidate: Sketched | None,
    reference: Sketched | None,
    others: Sequence[Sketched | None],
    dtype: str,
    *,
    loosened: float = 1.0,
    least: float = 0.0,
) -> Screened:
    """Screen a tensor by the measured rounding, as `judge_tensor` judges it by the whole norm.

    What cannot be screened (no sketch, another shape, values that are not finite, no measured
    rounding) is a suspect, unless candidate and reference are equal.
    """
    if candidate is None or reference is None or candidate.shape != reference.shape:
        return SUSPECT
    difference = candidate - reference
    size, error = reference.norm, difference.norm
    if not (math.isfinite(size) and math.isfinite(error)):
        return SUSPECT
    apart = [o - reference for o in others if o is not None and o.shape == reference.shape]
    responses = [norm for response in apart if math.isfinite(norm := response.norm)]
    if not responses:
        return Screened(True, 0.0, 0.0) if error <= EQUAL * size else SUSPECT
    response = least_response(size, responses, dtype, least)
    allowed = SAFETY[dtype] * loosened * response
    ratio = error / allowed if error and allowed else math.inf if error else 0.0
    if dtype in LOW_PRECISION and error and size:
        shares = [abs(response.along(reference)) for response in apart]
        floor = PROJECTION_FLOOR * response / size
        noise = 3 * _PROJECTION_DEVIATION * error / size
        most = SAFETY[dtype] * loosened * max(*shares, floor) + noise
        along = abs(difference.along(reference))
        ratio = max(ratio, CLEARED * along / most)
    return Screened(ratio <= CLEARED, ratio, allowed / size if size else 0.0)


def same(candidate: Sketched | None, reference: Sketched | None) -> bool:
    """Whether two tensors are equal, as far as sums of float64 can tell."""
    if candidate is None or reference is None or candidate.shape != reference.shape:
        return False
    error = (candidate - reference).norm
    return error <= EQUAL * reference.norm  # false for NaN
