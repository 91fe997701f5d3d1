"""The failure message of `assert_resumable`: what was not restored, and the first difference.

Plain text of at most 100 columns, like the other reports.
"""

from __future__ import annotations

from pytest_trainsafe.core.code_files import relative
from pytest_trainsafe.judges.compare.text.message import message_of
from pytest_trainsafe.judges.replay.resume.judge import ResumedJudgement
from pytest_trainsafe.report.rows import head, row


def message(judgement: ResumedJudgement) -> str:
    """The message for a judgement of `assert_resumable` that is not a pass."""
    wrong = judgement.verdict == "fail"
    what = (
        "does not continue as if it were never interrupted"
        if wrong
        else "is inconclusive, so not a pass"
    )
    lines = head(f"trainsafe: {judgement.what}, {what}")
    shown = [each for each in judgement.findings if each.judge == "replay"]
    for finding in shown:
        lines += ["", f"  {finding.check}", *row("what", finding.message)]
        if finding.pattern is not None:
            lines += row("so", finding.pattern.cause)
        lines += row("look at", relative(finding.source) if finding.source else "", wrapped=False)
    first = next((f.pattern.text for f in shown if f.pattern is not None and f.pattern.text), "")
    if first:
        lines += ["", *row("differs first", first)]
    if judgement.compared is not None:
        lines += ["", message_of(judgement.compared)]
    if judgement.not_compared:
        lines.append("")
    for text in judgement.not_compared:
        lines += row("not compared", text.removeprefix("not compared: "))
    return "\n".join(lines)
