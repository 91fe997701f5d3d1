"""Determines the largest error that rounding explains: a measured response times a safety factor.

The response of a tensor is how far rounding changes its values in the reference.  It is measured in
two ways, and the larger result counts: as the difference between the reference and a run of it with
noise of the size of rounding (TTrace 4.5), and as the difference between the reference and a run of
it in float64.  Each detects what the other misses: the noise shows amplification, and the float64
run shows kernels that round more than once.  The factors were calibrated on clean programs;
`docs/tolerances.md` has the figures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pytest_trainsafe.core.rungs.table import rung_named
from pytest_trainsafe.judges.compare.tensors.errors import Errors, Norms, Wide, spread

#: A norm over n elements of equal size fluctuates by about 1/sqrt(n).  Here n is the participation
#: ratio, the number of elements that carry the norm.
FLUCTUATION = 1.0

#: The same for slices.  There are many, and the largest of thousands fluctuates more.
SLICE_FLUCTUATION = 3.0

#: Noise is correlated between elements, so its projection on the reference is at least this share
#: of its norm for any number of elements.
PROJECTION_FLOOR = 0.125


@dataclass(frozen=True, slots=True)
class Allowance:
    """The largest errors that rounding explains; each field limits the same field of `Errors`.

    norm: the absolute Frobenius norm of the error.
    slices: for each dimension, the norm at every index (1-D arrays).
    along: the projection of the error on the reference; 0.01 for values that are 1 % too large.
    """

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
    """The largest error that rounding in `dtype` explains in the tensor `reference`.

    `responses` are the measured effects of rounding: the differences between `reference` and its
    values in runs with noise and in float64.  `loosened` multiplies every allowance; it is 1 unless
    the user gave a reason.  `least` is a lower bound for the norm of the effect of rounding, which
    is known without a measurement: for example, storing a value in its dtype causes a rounding
    error of known size.
    """
    assert responses, "an allowance needs at least one measured response"
    factor = rung_named(dtype).safety * loosened
    own = spread(reference)
    size = math.sqrt(own.power)
    response = least_response(size, [r.norm for r in responses], dtype, least)
    relative = response / size if size else 0.0
    # A scalar has no spread from which to estimate its fluctuation; the floor covers it.
    fluctuation = 1 + FLUCTUATION * own.few if reference.size > 1 else 1.0
    along = max(*(abs(r.along) for r in responses), relative * max(PROJECTION_FLOOR, own.few))
    slices = tuple(
        factor * _slices(norms, few, [r.slices[dim] for r in responses], response, relative)
        for dim, (norms, few) in enumerate(zip(own.slices, own.slices_few, strict=True))
    )
    return Allowance(factor * fluctuation * response, slices, factor * fluctuation * along)


def least_response(size: float, measured: Sequence[float], dtype: str, least: float) -> float:
    """How far rounding is assumed to change a tensor, as the norm of the change.

    Returns the largest of three norms.  `measured` has the norms of the measured changes.  `least`
    is a lower bound that is known without a measurement.  The third norm is the smallest plausible
    change in `dtype`, which is proportional to `size`, the norm of the reference.
    """
    return max(*measured, rung_named(dtype).floor * rung_named(dtype).epsilon * size, least)


def _slices(
    own: Norms, few: Norms, measured: Sequence[Norms], response: float, relative: float
) -> Norms:
    """The allowed error of each slice along one dimension, before the safety factor.

    `own` has the norm of each slice of the reference.  `few` has, for each slice, 1 over the square
    root of the number of elements that carry the norm: 1 for one element, near 0 for many.  Each
    array in `measured` has the norms of the slices of one measured effect of rounding.  `response`
    is the norm of the effect on the whole tensor, and `relative` is `response` divided by the norm
    of the reference.  The allowed error is the largest measured one, but at least a share of
    `response`.  The share is the larger of two: one proportional to the slice's norm, since large
    values have larger rounding errors, and one that is equal for all slices.  The result is larger
    for slices whose norm comes from few elements, because such norms fluctuate more.
    """
    share = np.maximum(own * relative, response / math.sqrt(max(own.size, 1)))
    allowed: Norms = np.maximum(np.max(measured, axis=0), share) * (1 + SLICE_FLUCTUATION * few)
    return allowed
