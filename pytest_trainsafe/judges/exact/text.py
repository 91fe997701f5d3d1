"""The failure message of `assert_proved_equivalent`: refuted, or not covered and why.

Plain text of at most 100 columns, like the other reports.
"""

from __future__ import annotations

from pytest_trainsafe.judges.compare.text.message import message_of
from pytest_trainsafe.judges.exact.proof import ProofJudgement, only_lacks_annotations
from pytest_trainsafe.report.rows import head, row


def message(judgement: ProofJudgement) -> str:
    """The message for a judgement that is not a proof.

    If layouts are missing, and nothing else is known to be wrong, the program is not refuted.
    """
    if judgement.compared is not None and only_lacks_annotations(judgement.compared):
        return message_of(judgement.compared)
    wrong = judgement.verdict == "fail"
    what = (
        "does not compute what its reference computes, on numbers without rounding"
        if wrong
        else "is neither proved nor refuted, so not a pass"
    )
    lines = head(f"trainsafe: {judgement.what} {what}")
    if judgement.confirmed:
        lines += ["", *row("confirmed", "float64 refutes it too")]
    if judgement.compared is not None:
        return message_of(judgement.compared, "\n".join(lines))
    for finding in judgement.findings:
        lines += ["", f"  {finding.check}", *row("because", finding.message)]
    return "\n".join(lines)
