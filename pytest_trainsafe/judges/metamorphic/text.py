"""The failure message of `assert_same_by`: the relation, the first wrong tensor, the usual causes.

Plain text of at most 100 columns, like the other reports.
"""

from __future__ import annotations

from pytest_trainsafe.judges.compare.text.message import message_of
from pytest_trainsafe.judges.first_line import of_doubt, of_failure
from pytest_trainsafe.judges.metamorphic.judge import RelationJudgement
from pytest_trainsafe.report.rerun import rerun_of
from pytest_trainsafe.report.rows import head, row


def message(judgement: RelationJudgement) -> str:
    """The message for a judgement of `assert_same_by` that is not a pass."""
    compared, relation, setting = judgement.compared, judgement.relation, judgement.setting
    assert compared is not None
    assert relation is not None
    assert setting is not None
    wrong = judgement.verdict == "fail"
    what = "does not train the same under" if wrong else "is not judged by"
    title = (
        f"trainsafe: {setting.program} at {setting.point} {what} the relation {relation.name}"
        f"{'' if wrong else ': inconclusive, so not a pass'}"
    )
    lines = row("relation", f"{relation.what} ({judgement.changes})")
    own = [each for each in judgement.findings if each.judge == judgement.judge]
    for finding in own:
        where = f"{finding.where}: " if finding.where is not None else ""
        lines += row("what", f"{where}{finding.message}")
        if finding.verdict == "inconclusive":
            lines += row("to accept", f"accept=[{finding.check!r}], if this is meant")
    if wrong:
        lines += row("usually", relation.suspects)
    if wrong and judgement.draws:
        lines += row(
            "note",
            "the steps draw from torch's default generators, whose numbers depend on the shapes "
            "and the order of what is computed; a relation that changes these holds only with "
            "draws that depend on the sample, such as per_example_dropout",
        )
    for text in judgement.not_compared:
        lines += row("not compared", text.removeprefix("not compared: "))
    if compared.verdict == "pass":
        return "\n".join([*head(title), "", *lines, *rerun_of(compared.case)])
    return message_of(compared, "\n".join([*head(title), "", *lines]))


def first_line(judgement: RelationJudgement) -> str:
    """The finding that leads the report, in one line; "" for a pass."""
    failing = [each for each in judgement.findings if each.verdict == "fail"]
    if failing:
        return of_failure(failing[0], judgement.look_at[0])
    return of_doubt(judgement.findings[0]) if judgement.findings else ""
