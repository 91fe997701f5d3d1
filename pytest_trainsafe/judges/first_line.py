"""The one line that says what failed: pytest's short summary, JUnit files and GitHub show it.

Called by the assertions.  The node id beside this line names the test and the Point already, so the
line starts with the finding.
"""

from __future__ import annotations

from pytest_trainsafe.core.code_files import relative
from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.judges.contract import Judgement
from pytest_trainsafe.judges.joint import JointJudgement
from pytest_trainsafe.judges.own_text import own_text
from pytest_trainsafe.report.rows import times_text


def first_line(judgement: Judgement | JointJudgement) -> str:
    """The finding that leads the report of a judgement, in one line; "" for a pass.

    For example `bias · main_grad: partial sums over dp, all-reduce missing, at model.py:53`, or
    `inconclusive: 9 of 9 weights of the reference start as zeros (zeros)`.
    """
    if isinstance(judgement, JointJudgement):
        judgement = judgement.leading
    own = getattr(own_text(judgement), "first_line", None)
    if own is not None:
        return str(own(judgement))
    if not judgement.findings:
        return ""
    if judgement.verdict != "fail":
        return of_doubt(judgement.findings[0])
    lead = next(finding for finding in judgement.findings if finding.verdict == "fail")
    return of_failure(lead, lead.source)


def of_failure(lead: Finding, place: str) -> str:
    """The line on a finding that fails, with the place of the faulty code."""
    return _about(lead) + _said(lead) + (f", at {relative(place)}" if place else "")


def of_doubt(lead: Finding) -> str:
    """The line on an inconclusive verdict."""
    return f"inconclusive: {_about(lead)}{_said(lead)} ({lead.check})"


def _about(finding: Finding) -> str:
    where = finding.where
    if where is not None:
        return f"{where.shown} · {where.kind}: "
    return f"{finding.subject}: " if finding.subject is not None else ""


def _said(finding: Finding) -> str:
    """What a finding says, in a few words: of its pattern, else its message, else its error."""
    if finding.pattern is not None and finding.pattern.short:
        return finding.pattern.short
    if finding.message:
        return finding.message.partition("\n")[0]
    if finding.error is None or finding.allowed is None:
        return "differs"
    if finding.allowed == 0 or finding.error == float("inf"):
        return "differs, and no rounding explains it"
    times = times_text(finding.error / finding.allowed)
    return f"an error of {finding.error:.2g}, {times} times what rounding allows"
