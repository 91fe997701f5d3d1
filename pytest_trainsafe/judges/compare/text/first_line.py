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
from pytest_trainsafe.judges.first_line import of_doubt, of_failure


def first_line(judgement: LadderJudgement) -> str:
    """The finding that leads the report, in one line; "" for a pass."""
    last = judgement.rungs[-1]
    if last.missing is not None and last.comparison.failed:
        return _of_missing(last, judgement.located)
    if judgement.verdict == "fail":
        return _of_failures(last.comparison.findings, judgement.located, last.explained)
    lead = leading(doubt for rung in judgement.rungs for doubt in rung.doubts)
    return of_doubt(lead) if lead is not None else ""


def _of_missing(judged: RungJudgement, located: Located | None) -> str:
    """The line on missing annotations; if they do not explain everything, with what else is wrong.

    For example `layouts are missing for 3 parameters`.
    """
    assert judged.missing is not None
    text = judged.missing.headline
    if judged.rest is None:
        return text
    return f"{text}; also {_of_failures(judged.rest.comparison.findings, located)}"


def _of_failures(
    findings: Sequence[Finding], located: Located | None = None, explained: bool = False
) -> str:
    """The line on the finding that leads a report, with the place of the faulty code.

    `explained` says that annotations are at fault, so that the code that the finding names is not.
    """
    failing = [finding for finding in findings if finding.verdict == "fail"]
    return of_failure(lead_of(failing), look_first(located, failing, explained)[0])
