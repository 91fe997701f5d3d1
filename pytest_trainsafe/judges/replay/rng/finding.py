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
) -> Finding:
    """The Finding that the rule `check` is broken, first at `draw` if a draw is to blame.

    With the verdict "inconclusive", it may be broken. `cause` follows the word "so" in a report.
    `axis` is the mesh axis whose ranks the rule compares, or "".
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
        source="" if draw is None else draw.event.line,
    )
