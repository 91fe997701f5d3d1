"""Asks one judge about the Runs of one fixture.  Called by assertions that ask one judge alone."""

from __future__ import annotations

import time

from pytest_trainsafe.judges.contract import Judge, Judgement, JudgeOptions
from pytest_trainsafe.judges.joint import JointJudgement, summary_of
from pytest_trainsafe.judges.own_text import own_text
from pytest_trainsafe.judges.sections import show
from pytest_trainsafe.runs.traces import Runs, Traces


def judge_alone(
    judge: Judge,
    traces: Traces,
    options: JudgeOptions | None = None,
    reference: Traces | None = None,
) -> Judgement:
    """The judgement of a judge on the Runs of one fixture, or of candidate and reference.

    Its summary and its artefacts are published.  The settings' `accept` is added to that of
    `options`.  Raises GroupFailure if the ranks of a Run did not finish.
    """
    case, runs = traces.case, Runs(traces, reference or traces)
    given = options or JudgeOptions()
    accept = frozenset((*given.accept, *case.settings.accept))
    runs.start(judge.required_runs(case))
    began = time.perf_counter()
    judgement = judge.judge(case, runs, JudgeOptions(given.loosen, accept, given.expect))
    _publish(judgement, traces, time.perf_counter() - began)
    return judgement


def publish_failure(judgement: Judgement, traces: Traces) -> None:
    """Publishes the summary of a judgement that `judge_alone` did not make, unless it passes."""
    if judgement.verdict != "pass":
        _publish(judgement, traces)


def _publish(judgement: Judgement, traces: Traces, seconds: float | None = None) -> None:
    """Publishes the summary of a judgement that took `seconds`, None if that is not known."""
    if traces.runs.publish is None:
        return
    summary = summary_of(JointJudgement([judgement]), traces.case)
    if seconds is not None:
        summary.setdefault("seconds", {"judge": seconds})
    traces.runs.publish(summary)


def report_alone(judgement: Judgement) -> str:
    """The report of a judgement whose judge was asked alone, "" for a pass; a page shows it too."""
    text = ""
    if judgement.verdict != "pass":
        own = own_text(judgement)
        assert own is not None, judgement.judge
        text = str(own.message(judgement))
    show(judgement, text)
    return text
