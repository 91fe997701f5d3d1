"""Says of a factor whether an axis causes it, once Points without this axis were tried.

A factor of 2 at dp=2 may come from dp, or from anything else.  Called by the ladder after a
localisation.
"""

from __future__ import annotations

import msgspec

from pytest_trainsafe.core.finding import Finding, Pattern
from pytest_trainsafe.judges.compare.comparison import Comparison
from pytest_trainsafe.judges.compare.fault.located import Located
from pytest_trainsafe.judges.compare.patterns.scale import equal_axes, of_axis, without_axes


def with_known_axis(comparison: Comparison, located: Located) -> None:
    """Replace the patterns of factors in `comparison` by what the localisation shows of axes."""
    comparison.findings[:] = [_known(finding, located) for finding in comparison.findings]


def _known(finding: Finding, located: Located) -> Finding:
    pattern = finding.pattern
    if pattern is None or not pattern.equals:
        return finding
    return msgspec.structs.replace(finding, pattern=_pattern(pattern, located))


def _pattern(pattern: Pattern, located: Located) -> Pattern:
    left = without_axes(pattern, located.not_axes)
    equal = equal_axes(left)
    needed = [axis for axis in located.needs or (located.axis,) if axis in equal]
    if len(needed) == 1:
        return of_axis(left, needed[0], certain=False)
    # A line that sums wrong gradients alone, over an axis of the size of the factor, sums replicas.
    counted = [axis for axis in located.summed if axis in equal and pattern.factor > 1]
    return of_axis(left, counted[0]) if len(counted) == len(located.summed) == 1 else left
