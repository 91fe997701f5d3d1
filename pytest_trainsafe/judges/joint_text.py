"""The report of a test with several judges.

Called by `assert_trainsafe`.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_trainsafe.core.code_files import relative
from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.judges.contract import Judgement
from pytest_trainsafe.judges.joint import JointJudgement
from pytest_trainsafe.judges.own_text import own_text
from pytest_trainsafe.report.rerun import rerun_of
from pytest_trainsafe.report.rows import head, row

#: The number of Findings of one judge that a report prints in full.
MAX_FINDINGS = 4


def report_of(joint: JointJudgement) -> str:
    """The report of a test; "" for a pass.

    The report of the leading judgement comes first, and the other judges' Findings follow.
    """
    if joint.verdict == "pass":
        return ""
    lead, case = joint.leading, joint.case
    own = own_text(lead)
    others = [each for each in joint.judgements if each is not lead and each.findings]
    if own is not None:
        lines = [str(own.message(lead))]
        for each in others:
            lines += ["", *findings_of(each)]
        return "\n".join(lines)
    word = "fails" if joint.verdict == "fail" else "is inconclusive, so not a pass"
    what = "the test" if case is None else f"{case.program.name} at {case.point}"
    lines = [*head(f"trainsafe: {what} {word}"), ""]
    for each in (lead, *others):
        if own_text(each) is None:
            lines += findings_of(each)
    for each in joint.judgements:
        if own_text(each) is not None:
            lines += row(each.judge, f"its verdict is {each.verdict}")
    lines += rerun_of(case)
    return "\n".join(lines)


def findings_of(judgement: Judgement) -> list[str]:
    """The rows of a judge's Findings: the first few in full, then the number of the others."""
    lines: list[str] = []
    shown = judgement.findings[:MAX_FINDINGS]
    for number, finding in enumerate(shown):
        lines += _rows(finding, judgement.judge if number == 0 else "")
    more = len(judgement.findings) - len(shown)
    if more:
        lines += row("", f"and {more} more findings of {judgement.judge}")
    return lines


def _rows(finding: Finding, label: str) -> Sequence[str]:
    about = f"{finding.about}: " if finding.about is not None else ""
    first, *more = finding.message.splitlines()
    lines = row(label, f"{about}{first} ({finding.check})")
    for each in more:
        lines += row("", each.strip())
    if finding.pattern is not None:
        if finding.pattern.text not in finding.message:
            lines += row("pattern", finding.pattern.text)
        if finding.pattern.cause:
            lines += row("so", finding.pattern.cause)
    if finding.source:
        lines += row("look at", relative(finding.source))
    return lines
