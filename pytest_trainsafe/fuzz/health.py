"""The health check that fails a fuzz test if rules exclude most of its Points."""

from __future__ import annotations

from collections import Counter

from hypothesis.errors import FailedHealthCheck

from pytest_trainsafe.sweep.search.space import Space

#: How many Points are drawn for the check, and the share of them that must be close to valid.
DRAWN, MIN_SHARE = 100, 0.1
#: The reasons that the message lists.
MAX_REASONS = 4


def require_mostly_valid(space: Space) -> None:
    """Raises FailedHealthCheck if few Points drawn at random are valid or nearly valid.

    A Point is nearly valid if a change of one axis, other than a mesh axis, makes it valid.  The
    strategy repairs all other Points by changes of several axes.  Such repairs give many drawn
    Points the same few results.  If most Points need such repairs, the test repeats these results.
    """
    excluded: Counter[str] = Counter()
    for values in space.drawn_at_random(DRAWN):
        if not space.is_near(values):
            excluded[space.cell(space.point(values)).invalid or ""] += 1
    if DRAWN - excluded.total() >= MIN_SHARE * DRAWN:
        return
    reasons = "".join(f"\n  {text} ({count})" for text, count in excluded.most_common(MAX_REASONS))
    raise FailedHealthCheck(
        f"Most points that this test declares are invalid for {space.declaration.program.name}: "
        f"of {DRAWN} drawn points, {excluded.total()} are invalid even with one axis changed. "
        "The examples would repeat the same few points. Give the axes values that fit together; "
        "or, to ignore this, add HealthCheck.filter_too_much to suppress_health_check in the "
        f"settings of this test. Reasons:{reasons}"
    )
