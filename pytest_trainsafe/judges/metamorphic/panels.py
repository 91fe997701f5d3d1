"""The panels of a metamorphic relation: the comparison of the two Runs, and its own Findings."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_trainsafe.judges.compare.panels import panels as compared_panels
from pytest_trainsafe.judges.metamorphic.judge import RelationJudgement
from pytest_trainsafe.judges.sections import findings_tables
from pytest_trainsafe.report.panels import Panel, Table
from pytest_trainsafe.report.sections import label


def panels(judgement: RelationJudgement) -> Sequence[Panel]:
    """The panels of the relation `judgement.relation`."""
    own = [each for each in judgement.findings if each.judge == judgement.judge]
    made: list[Panel] = []
    if judgement.relation is not None:
        facts = [("relation", judgement.relation.what), ("changes", judgement.changes)]
        rows = tuple((name, label(text)) for name, text in facts if text)
        made.append(Table(title="The relation", rows=rows))
    made += findings_tables(own)
    if judgement.compared is not None:
        made += compared_panels(judgement.compared)
    return made
