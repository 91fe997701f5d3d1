"""Combines the verdicts of all judges.  Called by the assertions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_trainsafe.core.finding import Finding, Verdict
from pytest_trainsafe.judges.contract import Judge, Judgement, JudgeOptions, worst
from pytest_trainsafe.judges.first_of import first_of
from pytest_trainsafe.judges.loosen import Loosen
from pytest_trainsafe.judges.made_file import made_file
from pytest_trainsafe.judges.registry import judges
from pytest_trainsafe.launch import GroupFailure
from pytest_trainsafe.runs.traces import Runs, Traces
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.sweep.expectation import Expectation
from pytest_trainsafe.sweep.point_summary import PointSummary


@dataclass(frozen=True, slots=True)
class JointJudgement:
    """The judgements of one test, in the order in which the judges ran; `case` is the test."""

    judgements: Sequence[Judgement]
    case: Case | None = None

    @property
    def verdict(self) -> Verdict:
        """The worst of the judges' verdicts."""
        return worst(each.verdict for each in self.judgements)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of all judges: failing judges first, then inconclusive ones, then the rest.

        The findings of one judge keep their order.
        """
        order: list[Verdict] = ["fail", "inconclusive", "pass"]
        ranked = sorted(self.judgements, key=lambda each: order.index(each.verdict))
        return tuple(finding for each in ranked for finding in each.findings)

    @property
    def leading(self) -> Judgement:
        """The judgement with which the report starts: the first one with the worst verdict."""
        return next(each for each in self.judgements if each.verdict == self.verdict)


def judge_case(
    candidate: Traces,
    reference: Traces,
    loosen: Sequence[Loosen] = (),
    accept: Sequence[str] = (),
    expect: Sequence[Expectation] = (),
) -> JointJudgement:
    """Run every judge, publish the Point's summary, and return the judgements.

    Raises GroupFailure if the ranks of a Run did not finish; but if they miss an annotation file
    that is to be made, the Runs are repeated with it.
    """
    case = candidate.case
    every = judges(case.settings.judges)
    available = [each for each in every if _is_asked(each, case)]
    runs = Runs(candidate, reference)
    for judge in available:
        runs.start(judge.required_runs(case))
    options = JudgeOptions(loosen, frozenset((*accept, *case.settings.accept)), expect)
    made: set[Path] = set()
    while True:
        try:
            joint = JointJudgement([judge.judge(case, runs, options) for judge in available], case)
            break
        except GroupFailure as failure:
            path = made_file(failure, runs)
            if path is None or path in made:
                raise
            made.add(path)
        both = runs.candidate, runs.reference
        runs = Runs(*(replace(each, repeat=each.repeat + 1) for each in both))
    if joint.verdict == "fail":
        lead = next(finding for finding in joint.findings if finding.verdict == "fail")
        more = (_explain(each, case, runs, options, lead) for each in every)
        joint = replace(joint, judgements=[*joint.judgements, *filter(None, more)])
    if candidate.runs.publish is not None:
        candidate.runs.publish(summary_of(joint, case))
    return joint


def _is_asked(judge: Judge, case: Case) -> bool:
    """Whether a judge is asked about a test: one that judges rungs only if it has one of them."""
    return not getattr(judge, "of_rungs", False) or bool(case.rungs_of(judge.name))


def _explain(
    judge: Judge, case: Case, runs: Runs, options: JudgeOptions, lead: Finding
) -> Judgement | None:
    """What a judge that was not asked says of the first failing finding; None if nothing."""
    explain = getattr(judge, "explain", None)
    if explain is None or _is_asked(judge, case):
        return None
    found: Judgement | None = explain(case, runs, options, lead)
    return found


def summary_of(joint: JointJudgement, case: Case) -> PointSummary:
    """The Point's summary: that of the first judge with one, with the verdict and notes of all.

    It has the rungs of all judges.  If another judge's verdict is worse, its first finding is the
    reason.
    """
    own = next((each for each in joint.judgements if hasattr(each, "summary")), None)
    summary: PointSummary = {"point": str(case.point), "verdict": "pass"}
    if own is not None:
        summary = own.summary
    if text := case.arguments_text:
        summary["arguments"] = text
    others = [each for each in joint.judgements if each is not own]
    more = [rung for each in others for rung in getattr(each, "summary", {}).get("rungs", [])]
    if more:
        summary["rungs"] = [*summary.get("rungs", []), *more]
    summary["notes"] = [*summary.get("notes", []), *(t for j in others for t in j.not_compared)]
    artefacts: dict[str, str] = {}
    for each in joint.judgements:
        artefacts.update(getattr(each, "artefacts", {}))
    if artefacts:
        summary["artefacts"] = artefacts
    if joint.verdict == summary["verdict"]:
        return summary
    summary["verdict"] = joint.verdict
    worse = next(each for each in others if each.verdict == joint.verdict and each.findings)
    lead = worse.findings[0]
    if joint.verdict == "fail":
        summary.pop("reason", None)
        summary["first"] = first_of(lead)
        source, what = getattr(worse, "look_at", ("", ""))
        if source:
            summary["look_at"] = {"source": source, "what": what}
        if facts := [*getattr(worse, "facts", ())]:
            summary["facts"] = facts
    else:
        summary["reason"] = lead.message
    return summary
