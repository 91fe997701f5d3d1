"""Judges tensors by their sketches (random projections): clears them, or makes them suspects.

Sketches only give an estimate of the error, so they never fail a tensor.  A suspect is recorded
again with its values, and judged by those.  Called by the compare judge for tensors without
recorded values.  docs/tolerances.md derives how likely a wrong tensor is to be cleared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_trainsafe.align.sketched import Sketched
from pytest_trainsafe.core.rungs.table import rung_named
from pytest_trainsafe.judges.compare.tensors.allowance import PROJECTION_FLOOR, least_response
from pytest_trainsafe.trace.tensors.sketch import COLUMNS, ROWS

#: A tensor is cleared if its estimated error is at most this share of its allowance.  The margin
#: covers the errors of both estimates.
CLEARED = 0.5

#: Tensors whose relative difference is below this count as equal: float64 sums in different orders
#: may differ by as much.
EQUAL = 1e-13

#: The standard deviation of an estimated projection, relative to the error's norm.
_PROJECTION_DEVIATION = math.sqrt(1 / ROWS + 1 / COLUMNS)


@dataclass(frozen=True, slots=True)
class SketchJudgement:
    """The result of screening one tensor.

    `cleared` says whether the tensor passes; if not, it is a suspect.  `ratio` is the estimated
    error divided by its allowance, and `allowed` the allowance relative to the reference's norm.
    """

    cleared: bool
    ratio: float
    allowed: float


SUSPECT = SketchJudgement(False, math.inf, 0.0)


def screen_tensor(
    candidate: Sketched | None,
    reference: Sketched | None,
    others: Sequence[Sketched | None],
    dtype: str,
    *,
    loosened: float = 1.0,
    least: float = 0.0,
) -> SketchJudgement:
    """Screen a tensor: estimate its error, and compare it with the error that rounding explains.

    `others` are the sketches in the runs that measure rounding; `loosened` and `least` are as in
    `allowance`.

    A tensor that cannot be screened (no sketch, another shape, values that are not finite, no
    measured rounding) is a suspect, unless candidate and reference are equal.
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
        return SketchJudgement(True, 0.0, 0.0) if error <= EQUAL * size else SUSPECT
    response = least_response(size, responses, dtype, least)
    allowed = rung_named(dtype).safety * loosened * response
    ratio = error / allowed if error and allowed else math.inf if error else 0.0
    if rung_named(dtype).low and error and size:
        shares = [abs(response.along(reference)) for response in apart]
        floor = PROJECTION_FLOOR * response / size
        noise = 3 * _PROJECTION_DEVIATION * error / size
        most = rung_named(dtype).safety * loosened * max(*shares, floor) + noise
        along = abs(difference.along(reference))
        ratio = max(ratio, CLEARED * along / most)
    return SketchJudgement(ratio <= CLEARED, ratio, allowed / size if size else 0.0)


def same(candidate: Sketched | None, reference: Sketched | None) -> bool:
    """Whether two tensors are equal, within the accuracy of float64 sums."""
    if candidate is None or reference is None or candidate.shape != reference.shape:
        return False
    error = (candidate - reference).norm
    return error <= EQUAL * reference.norm  # false for NaN
