"""The failure message of `assert_deterministic`: the first difference, its operator, its cause.

Plain text of at most 100 columns, like the other reports.
"""

from __future__ import annotations

from pytest_trainsafe.core.code_files import relative
from pytest_trainsafe.judges.contract import FindingsJudgement
from pytest_trainsafe.report.rows import head, row


def message(judgement: FindingsJudgement) -> str:
    """The message for a judgement of `assert_deterministic` that is not a pass."""
    wrong = judgement.verdict == "fail"
    what = "is not deterministic" if wrong else "is inconclusive, so not a pass"
    lines = head(f"trainsafe: {judgement.what} {what}")
    for finding in judgement.findings:
        about = f"{finding.about} " if finding.about is not None else ""
        lines += ["", f"  {finding.check}", *row("first", about + finding.message)]
        if finding.pattern is not None:
            lines += row("operator", finding.pattern.text)
            lines += row("so", finding.pattern.cause)
        lines += row("look at", relative(finding.source) if finding.source else "", wrapped=False)
    if judgement.not_compared:
        lines.append("")
    for text in judgement.not_compared:
        label, _, rest = text.partition(": ")
        known = label in ("not varied", "not compared")
        lines += row(label if known else "not compared", rest if known else text)
    return "\n".join(lines)
