"""How far rounding alone may take a tensor: measured on the reference, times a safety factor.

The measure is the larger of two responses of the reference itself: to noise of the size of
rounding (TTrace 4.5), and its distance from its own float64 shadow.  Each covers what the other
misses: the noise sees amplification, the shadow sees kernels that round more than once.
The factors were calibrated on clean programs; `docs/tolerances.md` has the figures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pytest_trainsafe.core.precision import precision
from pytest_trainsafe.judge.compare.errors import Errors, Norms, Wide, spread

#: A norm over n elements of equal size fluctuates by about 1/sqrt(n); n is the participation
#: ratio, since what counts is how many elements carry the norm.
FLUCTUATION = 1.0

#: The same for slices, which are many: the largest of thousands strays further.
SLICE_FLUCTUATION = 3.0

#: Noise is not independent between elements, so its projection on the reference falls no
#: further than this share of its norm, however many elements there are.
PROJECTION_FLOOR = 0.125


@dataclass(frozen=True, slots=True)
class Allowance:
    """The largest errors that rounding explains, in the units of `Errors`."""

    norm: float
    slices: tuple[Norms, ...]
    along: float


def allowance(
    reference: Wide,
    responses: Sequence[Errors],
    dtype: str,
    *,
    loosened: float = 1.0,
    least: float = 0.0,
) -> Allowance:
    """What rounding in `dtype` may do to `reference`, whose measured responses are given.

    `loosened` multiplies every allowance; it is 1 unless the user gave a reason.  `least` is a
    response (an absolute norm) known without measuring: that of a difference of stored values.
    """
    assert responses, "an allowance needs at least one measured response"
    factor = precision(dtype).safety * loosened
    own = spread(reference)
    size = math.sqrt(own.power)
    response = least_response(size, [r.norm for r in responses], dtype, least)
    relative = response / size if size else 0.0
    # The floor stands in for the fluctuation of a scalar, which has no spread to judge by.
    fluctuation = 1 + FLUCTUATION * own.few if reference.size > 1 else 1.0
    along = max(*(abs(r.along) for r in responses), relative * max(PROJECTION_FLOOR, own.few))
    slices = tuple(
        factor * _slices(norms, few, [r.slices[dim] for r in responses], response, relative)
        for dim, (norms, few) in enumerate(zip(own.slices, own.slices_few, strict=True))
    )
    return Allowance(factor * fluctuation * response, slices, factor * fluctuation * along)


def least_response(size: float, measured: Sequence[float], dtype: str, least: float) -> float:
    """The response to go by, an absolute norm: the largest measured one, or the floor."""
    return max(*measured, precision(dtype).floor * precision(dtype).epsilon * size, least)


def _slices(
    own: Norms, few: Norms, measured: Sequence[Norms], response: float, relative: float
) -> Norms:
    """What a slice may err: as measured, and no less than its share of the whole response.

    Its share by size, since large values round by more, and its share by number.
    """
    share = np.maximum(own * relative, response / math.sqrt(max(own.size, 1)))
    allowed: Norms = np.maximum(np.max(measured, axis=0), share) * (1 + SLICE_FLUCTUATION * few)
    return allowed
