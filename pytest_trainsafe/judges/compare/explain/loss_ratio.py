"""Recognises losses that are all the same multiple of the reference's, as by a wrong divisor.

One loss is a single number, which some factor always explains.  Called by `guards.leading`.
"""

from __future__ import annotations

import math

from pytest_trainsafe.core.finding import Finding, Pattern
from pytest_trainsafe.judges.compare.comparison import Comparison

#: The fewest losses of one step that show a common ratio.
FEWEST = 2

#: The least relative difference of two ratios; rounding may make it greater.
_APART = 1e-6


def same_ratio(comparison: Comparison, lead: Finding) -> Pattern | None:
    """The pattern of a wrong loss if all losses of its step are wrong by the same ratio."""
    where = lead.where
    if where is None or where.kind != "loss" or lead.pattern is not None:
        return None
    found = {}
    for finding in comparison.findings:
        if finding.where is not None and (finding.where.kind, finding.where.step) == (
            "loss",
            where.step,
        ):
            found[finding.where] = finding
    ratios = [_ratio(finding) for finding in found.values()]
    if len(ratios) < FEWEST or not ratios[0] or not math.isfinite(ratios[0]):
        return None
    blur = max(_APART, *(3 * (finding.allowed or 0.0) for finding in found.values()))
    if any(not abs(ratio - ratios[0]) <= blur * abs(ratios[0]) for ratio in ratios):
        return None
    text = f"the loss is {ratios[0]:.6g} times the reference in {len(ratios)} micro-batches"
    cause = "the loss is divided by another number than in the reference, or multiplied by one"
    short = f"the loss is {ratios[0]:.6g} times the reference"
    return Pattern("scaled", text, cause=cause, factor=ratios[0], short=short)


def _ratio(finding: Finding) -> float:
    """The value of a loss divided by the reference's; NaN if it is not one real number."""
    mismatch = finding.mismatch
    if mismatch is None or mismatch.elements != 1:
        return math.nan
    value, expected = mismatch.value, mismatch.expected
    if isinstance(value, complex) or isinstance(expected, complex) or not expected:
        return math.nan
    return value / expected
