"""The one line of a comparison that is not a pass."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.judges.compare.fault.located import Located
from pytest_trainsafe.judges.compare.guards.causes import leading
from pytest_trainsafe.judges.compare.judgement import (
    LadderJudgement,
    RungJudgement,
    lead_of,
)
from pytest_trainsafe.judges.compare.ladder.look_first import look_first
from pytest_trainsafe.judges.compare.text.unmatched import dead_words
from pytest_trainsafe.judges.compare.unmatched import apart
from pytest_trainsafe.judges.first_line import of_doubt, of_failure


def first_line(judgement: LadderJudgement) -> str:
    """The finding that leads the report, in one line; "" for a pass."""
    last = judgement.rungs[-1]
    dead, others = apart(last.comparison.findings)
    if dead:
        return of_failure(dead[0], dead[0].source) + _after_dead(dead, others, judgement)
    if last.missing is not None and last.comparison.failed:
        return _of_missing(last, judgement.located)
    if judgement.verdict == "fail":
        return _of_failures(others, judgement.located, last.explained)
    lead = leading(doubt for rung in judgement.rungs for doubt in rung.doubts)
    return of_doubt(lead) if lead is not None else ""


def _after_dead(
    dead: Sequence[Finding], others: Sequence[Finding], judgement: LadderJudgement
) -> str:
    """What else is wrong, after the first annotation that matches nothing."""
    last, located = judgement.rungs[-1], judgement.located
    more = [dead_words(dead)] if len(dead) > 1 else []
    if last.missing is not None:
        more.append(_of_missing(last, located))
    elif others and last.explained:
        return "; what differs may follow from that"
    elif others:
        more.append(_of_failures(others, located, last.explained))
    return "".join(f"; also {each}" for each in more if each)


def _of_missing(judged: RungJudgement, located: Located | None) -> str:
    """The line on missing annotations; if they do not explain everything, with what else is wrong.

    For example `layouts are missing for 3 parameters`.
    """
    assert judged.missing is not None
    parts = [judged.missing.headline]
    if judged.rest is not None:
        parts.append(_of_failures(apart(judged.rest.comparison.findings)[1], located))
    return "; also ".join(filter(None, parts))


def _of_failures(
    failing: Sequence[Finding], located: Located | None = None, explained: bool = False
) -> str:
    """The line on the finding that leads a report, with the place of the faulty code.

    `explained` says that annotations are at fault, so that the code that the finding names is not.
    """
    return of_failure(lead_of(failing), look_first(located, failing, explained)[0])
