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

from pytest_trainsafe.compare.errors import Errors, Norms, Wide, spread
from pytest_trainsafe.record.perturb import EPSILON

#: Allowed error over measured response, by working dtype.
SAFETY = {"float64": 10.0, "float32": 10.0, "bfloat16": 3.0, "float16": 3.0}

#: Responses are single samples and may be small by luck, those of scalars above all; the least
#: response assumed of a tensor, as a share of epsilon times its norm.
FLOOR = {"float64": 0.5, "float32": 0.5, "bfloat16": 0.125, "float16": 0.125}

#: A slice of m elements fluctuates more than the whole tensor, by about 1 + 4/sqrt(m).
SLICE_FLUCTUATION = 4.0

#: Noise is not independent between elements, so its projection on the reference falls no
#: further than this share of its norm, however many elements there are.
PROJECTION_FLOOR = 0.125

#: The dtypes in which rounding hides what the projection still shows.
LOW_PRECISION = frozenset({"bfloat16", "float16"})


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
    factor = SAFETY[dtype] * loosened
    own = spread(reference)
    size = math.sqrt(own.power)
    least_share = FLOOR[dtype] * EPSILON[dtype]
    response = max(*(r.norm for r in responses), least_share * size, least)
    slices = tuple(
        factor * _slice_allowance(dim, slices, responses, response, least_share, reference.size)
        for dim, slices in enumerate(own.slices)
    )
    relative = response / size if size else 0.0
    # A tensor dominated by few elements has few independent errors.
    along = max(
        *(abs(r.along) for r in responses),
        relative * max(PROJECTION_FLOOR, own.independent**-0.5),
    )
    return Allowance(factor * response, slices, factor * along)


def _slice_allowance(
    dim: int,
    own: Norms,
    responses: Sequence[Errors],
    response: float,
    least_share: float,
    numel: int,
) -> Norms:
    count = max(own.size, 1)
    elements = max(numel // count, 1)
    measured = np.max([r.slices[dim] for r in responses], axis=0)
    # Never less than the slice's share of the whole tensor's response, spread evenly.
    floor = np.maximum(response / math.sqrt(count), own * least_share)
    fluctuation = 1 + SLICE_FLUCTUATION / math.sqrt(elements)
    allowed: Norms = np.maximum(measured, floor) * fluctuation
    return allowed
