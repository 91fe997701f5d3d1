"""The report of a test with several judges: the comparison and the other judges' Findings.

Called by `assert_trainsafe`.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.judges.compare.text.message import message_of, rerun
from pytest_trainsafe.judges.contract import Judgement
from pytest_trainsafe.judges.joint import JointJudgement
from pytest_trainsafe.report.rows import head, row

#: The number of Findings of one judge that a report prints in full.
MAX_FINDINGS = 4


def report_of(joint: JointJudgement) -> str:
    """The report of a test; "" for a pass.

    If the comparison fails, its report comes first and the other judges' Findings follow;
    otherwise the failing judge's report comes first.
    """
    if joint.verdict == "pass":
        return ""
    compared = joint.comparison
    assert compared is not None
    others = [each for each in joint.judgements if each is not compared and each.findings]
    if compared.verdict == joint.verdict:
        lines = [message_of(compared)]
        for each in others:
            lines += ["", *findings_of(each)]
        return "\n".join(lines)
    word = "fails" if joint.verdict == "fail" else "is inconclusive, so not a pass"
    lines = [*head(f"trainsafe: {compared.program} at {compared.point} {word}"), ""]
    for each in others:
        lines += findings_of(each)
    lines += row("compare", f"the verdict of the comparison is {compared.verdict}")
    lines += rerun(compared)
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
    if finding.pattern is not None and finding.pattern.cause:
        lines += row("so", finding.pattern.cause)
    if finding.source:
        lines += row("look at", finding.source)
    return lines
