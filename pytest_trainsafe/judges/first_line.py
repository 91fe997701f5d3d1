"""The one line that says what failed: pytest's short summary, JUnit files and GitHub show it.

Called by the assertions.  The node id beside this line names the test and the Point already, so the
line starts with the finding.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_trainsafe.core.code_files import relative
from pytest_trainsafe.core.finding import Finding, Located
from pytest_trainsafe.judges.compare.guards.causes import leading
from pytest_trainsafe.judges.compare.ladder.judgement import LadderJudgement, RungJudgement, lead_of
from pytest_trainsafe.judges.compare.text.message import times_text
from pytest_trainsafe.judges.contract import Judgement
from pytest_trainsafe.judges.joint import JointJudgement


def first_line(judgement: Judgement | JointJudgement) -> str:
    """The finding that leads the report of a judgement, in one line; "" for a pass.

    For example `bias · main_grad: partial sums over dp, all-reduce missing, at model.py:53`, or
    `inconclusive: 9 of 9 weights of the reference start as zeros (zeros)`.
    """
    if isinstance(judgement, JointJudgement):
        judgement = _leading(judgement)
    if isinstance(judgement, LadderJudgement):
        last = judgement.rungs[-1]
        if last.missing is not None and last.comparison.failed:
            return _of_missing(last, judgement.located)
        if judgement.verdict == "fail":
            return _of_failures(last.comparison.findings, judgement.located, last.explained)
        return _of_doubts([doubt for rung in judgement.rungs for doubt in rung.doubts])
    if judgement.verdict == "fail":
        return _of_failures(judgement.findings)
    return _of_doubts(judgement.findings)


def _leading(joint: JointJudgement) -> Judgement:
    """The judgement with which the report starts: the comparison's, if it has the worst verdict."""
    worst = [each for each in joint.judgements if each.verdict == joint.verdict]
    return joint.comparison if joint.comparison in worst else worst[0]


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
    lead = lead_of([finding for finding in findings if finding.verdict == "fail"])
    source = located.source if located is not None else ""
    place = source or ("" if explained else lead.source)
    return _about(lead) + _said(lead) + (f", at {relative(place)}" if place else "")


def _of_doubts(doubts: Sequence[Finding]) -> str:
    """The line on an inconclusive verdict: the doubt that causes the others."""
    lead = leading(doubts)
    return f"inconclusive: {_about(lead)}{_said(lead)} ({lead.check})" if lead is not None else ""


def _about(finding: Finding) -> str:
    where = finding.where
    if where is not None:
        return f"{where.path} · {where.kind}: "
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
    return f"an error {times_text(finding.error / finding.allowed)} times too large"
