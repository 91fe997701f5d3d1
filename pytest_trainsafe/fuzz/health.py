"""The health check of a fuzz test whose values the rules mostly exclude."""

from __future__ import annotations

from collections import Counter

from hypothesis.errors import FailedHealthCheck

from pytest_trainsafe.sweep.search.space import Space

#: Values that are drawn for the check, and the share of them that must be close to a valid Point.
DRAWN, MIN_SHARE = 100, 0.1
#: The reasons that the message lists.
MAX_REASONS = 4


def require_mostly_valid(space: Space) -> None:
    """Raises FailedHealthCheck if few drawn values are a valid Point, even with one axis changed.

    The strategy then changes several axes of nearly every example, and the examples are few
    different Points, which is not what the test declares.
    """
    excluded: Counter[str] = Counter()
    for values in space.drawn_at_random(DRAWN):
        if not space.is_near(values):
            excluded[space.cell(space.point(values)).invalid or ""] += 1
    if DRAWN - excluded.total() >= MIN_SHARE * DRAWN:
        return
    reasons = "".join(f"\n  {text} ({count})" for text, count in excluded.most_common(MAX_REASONS))
    raise FailedHealthCheck(
        f"The rules of {space.declaration.program.name} exclude most of the points that this test "
        f"declares: of {DRAWN} drawn, {excluded.total()} are invalid even with one axis changed. "
        "Examples would be the same few points again and again. Give the axes values that fit "
        "together, or add HealthCheck.filter_too_much to suppress_health_check in the settings of "
        f"this test to ignore this. Reasons:{reasons}"
    )
