"""The failure message of the rules on random numbers: broken rules, causes, what was not compared.

Plain text of at most 100 columns.  Called by `assert_rng`.
"""

from __future__ import annotations

from pytest_trainsafe.core.code_files import relative
from pytest_trainsafe.judges.contract import FindingsJudgement
from pytest_trainsafe.report.rows import row


def message(judgement: FindingsJudgement) -> str:
    """The report of the Findings of the rules on random numbers, on one trace."""
    wrong = judgement.verdict == "fail"
    what = "draws its random numbers wrongly" if wrong else "inconclusive, so not a pass"
    head = f"trainsafe: {judgement.what}"
    lines = [f"{head} {what}" if wrong else f"{head}: {what}"]
    for finding in judgement.findings:
        lines += ["", f"  {finding.check}", *row("what", finding.message)]
        if finding.pattern is not None:
            lines += row("so", finding.pattern.cause)
        lines += row("look at", relative(finding.source) if finding.source else "", wrapped=False)
        if finding is judgement.findings[0]:
            lines += row("axis", getattr(judgement, "axis", ""))
    if judgement.not_compared:
        lines.append("")
    for text in judgement.not_compared:
        lines += row("not compared", text.removeprefix("not compared: "))
    return "\n".join(lines)
