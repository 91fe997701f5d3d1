"""Decides when a failure needs more samples of noise before it is reported.

One sample of the response to noise can be small by luck: that of a single number, or of a
gradient whose true value is zero, most of all.  A difference that only exceeds a lucky sample is
no bug, and one that exceeds every sample by orders of magnitude needs no second measurement.
Called by the ladder.
"""

from __future__ import annotations

import math

from pytest_trainsafe.compare.comparison import Comparison
from pytest_trainsafe.finding import Finding

#: Samples of noise in all after each further round, and the multiple of the allowance below which
#: the failure must lie for the round to be measured.  A sample of a single Gaussian number is
#: 10 000 times too small once in 10 000 times.  By eight samples a failure is 4 times too large
#: only where rounding is amplified so much that each sample goes another way.
ROUNDS = ((3, 1e4), (8, 1e4), (24, 4.0))

#: The checks that judge by measured rounding.
_MEASURED = frozenset({"norm", "slice", "projection", "decision"})


def needs_samples(comparison: Comparison, near: float) -> bool:
    """Whether the failure that leads the report may be due to small samples of rounding.

    It may be where the error is below `near` times its allowance.
    """
    failing = (f for f in comparison.findings if f.verdict == "fail" and f.where is not None)
    lead = min(failing, key=lambda finding: finding.order, default=None)
    return lead is not None and _is_near(lead, near)


def _is_near(finding: Finding, near: float) -> bool:
    if finding.check not in _MEASURED or finding.error is None or finding.allowed is None:
        return False
    # An allowance of zero is the response of a tensor that noise happened not to move.
    return math.isfinite(finding.error) and (
        not finding.allowed or finding.error < near * finding.allowed
    )
