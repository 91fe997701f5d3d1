"""Says of a factor of an update that a setting of the optimizer causes it, if one differs so.

Called by the ladder for a failed rung.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from pytest_trainsafe.core.finding import Finding, Pattern
from pytest_trainsafe.judges.compare.comparison import Comparison
from pytest_trainsafe.judges.compare.guards.later_steps import Apart, settings_apart
from pytest_trainsafe.judges.compare.rung import RungTraces

#: The largest relative difference between the factor of an update and that of a setting.
NEAR = 1e-3

_THE_SETTING = "the optimizer's setting "


def with_known_setting(rung: RungTraces, comparison: Comparison) -> None:
    """Replace the causes of factors of updates in `comparison` by the setting with this factor."""
    if any(map(_scales, comparison.findings)):
        apart = settings_apart(rung.candidate, rung.reference)
        comparison.findings[:] = of_settings(comparison.findings, apart)


def of_settings(findings: Iterable[Finding], apart: Sequence[Apart]) -> list[Finding]:
    """The findings; an update with the factor of a setting that differs has this as its cause."""
    return [_known(finding, apart) for finding in findings]


def is_setting(pattern: Pattern) -> bool:
    """Whether the cause of a pattern is a setting of the optimizer."""
    return pattern.cause.startswith(_THE_SETTING)


def _scales(finding: Finding) -> bool:
    kind = "" if finding.where is None else finding.where.kind
    pattern = finding.pattern
    return kind == "update" and pattern is not None and pattern.factor != 0


def _known(finding: Finding, apart: Sequence[Apart]) -> Finding:
    if not _scales(finding):
        return finding
    assert finding.where is not None
    assert finding.pattern is not None
    for each in apart:
        own = not each.names or finding.where.path in each.names
        if own and _has_factor(each, finding.pattern.factor):
            cause = f"{_THE_SETTING}{each.key} is {each.here}, in the reference {each.there}"
            pattern = msgspec.structs.replace(finding.pattern, cause=cause)
            return msgspec.structs.replace(finding, pattern=pattern)
    return finding


def _has_factor(apart: Apart, factor: float) -> bool:
    try:
        here, there = float(apart.here), float(apart.there)
    except ValueError:
        return False
    return there != 0 and math.isclose(here / there, factor, rel_tol=NEAR)
