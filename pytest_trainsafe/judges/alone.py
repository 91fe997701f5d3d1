"""Asks one judge about the Runs of one fixture.  Called by assertions that ask one judge alone."""

from __future__ import annotations

from pytest_trainsafe.judges.contract import Judge, Judgement, JudgeOptions
from pytest_trainsafe.judges.own_text import own_text
from pytest_trainsafe.runs.traces import Runs, Traces
from pytest_trainsafe.sweep.point_summary import PointSummary


def judge_alone(judge: Judge, traces: Traces, options: JudgeOptions | None = None) -> Judgement:
    """The judgement of a judge on the Runs of a fixture, the candidate's or the reference's.

    Its artefacts become part of the Point's summary.  The settings' `accept` is added to that of
    `options`.  Raises GroupFailure if the ranks of a Run did not finish.
    """
    case, runs = traces.case, Runs(traces, traces)
    given = options or JudgeOptions()
    accept = frozenset((*given.accept, *case.settings.accept))
    runs.start(judge.required_runs(case))
    judgement = judge.judge(case, runs, JudgeOptions(given.loosen, accept, given.expect))
    artefacts = getattr(judgement, "artefacts", {})
    if artefacts and traces.runs.publish is not None:
        summary: PointSummary = {"point": str(case.point), "verdict": judgement.verdict}
        traces.runs.publish(summary | {"artefacts": dict(artefacts)})
    return judgement


def report_alone(judgement: Judgement) -> str:
    """The report of a judgement whose judge was asked alone and has sentences of its own."""
    own = own_text(judgement)
    assert own is not None, judgement.judge
    return str(own.message(judgement))
