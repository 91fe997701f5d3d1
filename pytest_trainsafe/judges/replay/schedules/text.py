"""The failure message of `assert_schedule_independent`: each early use with both of its lines."""

from __future__ import annotations

from pytest_trainsafe.core.code_files import relative
from pytest_trainsafe.judges.contract import FindingsJudgement
from pytest_trainsafe.report.rows import head, row


def message(judgement: FindingsJudgement) -> str:
    """The message for a judgement of `assert_schedule_independent` that is not a pass."""
    wrong = judgement.verdict == "fail"
    what = "depends on when collectives complete" if wrong else "is inconclusive, so not a pass"
    lines = head(f"trainsafe: {judgement.what} {what}")
    for finding in judgement.findings:
        facts = dict(finding.evidence)
        about = f"{finding.about} " if finding.about is not None and not finding.pattern else ""
        lines += ["", f"  {finding.check}", *row("what", about + finding.message)]
        if finding.pattern is not None:
            lines += row("issued at", relative(str(facts["issued"])), wrapped=False)
            lines += row("used at", relative(str(facts["used"])), wrapped=False)
            lines += row("so", finding.pattern.cause)
    for text in judgement.not_compared:
        lines += ["", *row("not compared", text)]
    return "\n".join(lines)
