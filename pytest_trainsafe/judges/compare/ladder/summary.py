"""A Point's entry in the terminal's summary, from its judgement.  Called by the ladder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.judges.compare.comparison import Comparison
from pytest_trainsafe.judges.compare.guards.causes import leading
from pytest_trainsafe.judges.compare.judgement import (
    LadderJudgement,
    RungJudgement,
    lead_of,
)
from pytest_trainsafe.judges.compare.ladder.look_first import look_first
from pytest_trainsafe.judges.compare.unmatched import apart
from pytest_trainsafe.judges.first_of import first_of
from pytest_trainsafe.sweep.point_summary import (
    ANNOTATED,
    FirstSummary,
    PointSummary,
    RungSummary,
)

if TYPE_CHECKING:
    from pytest_trainsafe.judges.compare.declarations.proposal import Proposal


def point_summary(judgement: LadderJudgement, seconds: dict[str, float]) -> PointSummary:
    """The verdict, the first Finding or the reason, and the numbers of each rung."""
    judged, verdict = judgement.rungs, judgement.verdict
    doubt = leading(finding for entry in judged for finding in entry.doubts)
    summary: PointSummary = {
        "point": judgement.point,
        "verdict": verdict,
        "rungs": [_rung_summary(j.dtype, j.comparison) for j in judged],
        "seconds": {stage: round(spent, 3) for stage, spent in seconds.items()},
    }
    dead, failing = apart(judged[-1].comparison.findings)
    if dead:
        summary["first"] = first_of(dead[0])
        more = _more(judged[-1], failing)
        summary["first"]["message"] = "; ".join(filter(None, (dead[0].message, more)))
    elif verdict == "fail" and judged[-1].missing is not None:
        summary["first"] = _of_proposal(judged[-1], judged[-1].missing)
    elif verdict == "fail":
        summary["first"] = first_of(lead_of(failing))
        summary["first"]["source"], _ = look_first(None, failing, judged[-1].explained)
    elif doubt is not None:
        summary["reason"] = doubt.message
    return summary


def _more(judged: RungJudgement, failing: Sequence[Finding]) -> str:
    """What is wrong beside an annotation that matches nothing; "" if nothing is."""
    missing = judged.missing
    if missing is None:
        return _too(failing[0]) if failing and not judged.explained else ""
    left = missing.left if judged.rest is not None else None
    return "; ".join(filter(None, (missing.headline, _too(left) if left is not None else "")))


def _too(left: Finding) -> str:
    """What is wrong beside annotations."""
    where = left.where
    return f"{where.shown} · {where.kind} is wrong too" if where is not None else "more is wrong"


def _of_proposal(judged: RungJudgement, proposal: Proposal) -> FirstSummary:
    """The missing annotations, which lead the report, in place of its first Finding."""
    message = proposal.headline
    if judged.rest is not None and proposal.left is not None:
        message += f"; {_too(proposal.left)}"
    written = judged.advice.written
    cause = written or "add them from the report, or run with --trainsafe-annotate"
    if proposal.undecided:
        from pytest_trainsafe.judges.compare.declarations.undecided import alternative

        cause = f"either annotations are missing, or {alternative(proposal.undecided)}"
    return {
        "judge": "compare",
        "check": ANNOTATED if written else "annotations",
        "where": "",
        "pattern": "",
        "cause": cause,
        "message": message,
        "dtype": judged.dtype,
    }


def _rung_summary(dtype: str, comparison: Comparison) -> RungSummary:
    return {
        "dtype": dtype,
        "tensors": sum(comparison.compared.values()),
        "worst": comparison.worst,
        "worst_name": str(comparison.worst_id) if comparison.worst_id is not None else "",
    }
