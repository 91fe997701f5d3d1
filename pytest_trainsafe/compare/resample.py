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

#: Samples of noise in all after each further round; a round is measured only if the failure is
#: still near its allowance.
ROUNDS = (3, 8)

#: A difference above this multiple of its allowance is not a matter of one sample.  A sample of a
#: single Gaussian number is this small by luck once in 10 000 times.
NEAR = 1e4

#: The checks that judge by measured rounding.
_MEASURED = frozenset({"norm", "slice", "projection", "decision"})


def needs_samples(comparison: Comparison) -> bool:
    """Whether the failure that leads the report may be due to a small sample of rounding."""
    failing = (f for f in comparison.findings if f.verdict == "fail" and f.where is not None)
    lead = min(failing, key=lambda finding: finding.order, default=None)
    return lead is not None and _is_near(lead)


def _is_near(finding: Finding) -> bool:
    if finding.check not in _MEASURED or finding.error is None or finding.allowed is None:
        return False
    # An allowance of zero is the response of a tensor that noise happened not to move.
    return math.isfinite(finding.error) and (
        not finding.allowed or finding.error < NEAR * finding.allowed
    )
