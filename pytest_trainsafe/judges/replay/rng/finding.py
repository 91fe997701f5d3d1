"""Makes the Findings of the RNG rules."""

from __future__ import annotations

from pytest_trainsafe.core.finding import Finding, Pattern, Verdict
from pytest_trainsafe.judges.replay.rng.draws import Draw


def violation(
    check: str,
    message: str,
    cause: str,
    draw: Draw | None = None,
    axis: str = "",
    verdict: Verdict = "fail",
    other: Draw | None = None,
) -> Finding:
    """The Finding that the rule `check` is broken, first at `draw` if a draw is to blame.

    With the verdict "inconclusive", it may be broken. `cause` follows the word "so" in a report.
    `axis` is the mesh axis whose ranks the rule compares, or "", and `other` the draw of another
    rank that `draw` was compared with.
    """
    where = None if draw is None else draw.where
    classes = {} if draw is None else draw.rank.modules
    event = None if where is None else classes.get(where.module)
    return Finding(
        verdict=verdict,
        judge="replay",
        check=check,
        message=message,
        where=where,
        order=0 if draw is None else draw.order,
        pattern=Pattern(check, message, axis, cause),
        module_class=event.cls if event is not None else "",
        source="" if draw is None else _line(draw, other),
    )


def _line(draw: Draw, other: Draw | None) -> str:
    """The line to change: that of the draw, or the one that seeds, if the seeds decide the numbers.

    They do if two ranks have equal seeds and states, or neither, and no state was set since.
    """
    event = draw.event
    if other is not None and event.seeded and event.seed and not event.restored:
        equal = event.seed == other.event.seed
        if equal == (event.before == other.event.before):
            return event.seeded
    return event.line
