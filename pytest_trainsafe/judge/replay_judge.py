"""The registered replay judge, which applies the RNG rules to the first rung that ran."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_trainsafe.config.checks import is_accepted
from pytest_trainsafe.judge.contract import FindingsJudgement, JudgeOptions
from pytest_trainsafe.judge.replay.ledger_rules import judge_rng
from pytest_trainsafe.launch import GroupFailure
from pytest_trainsafe.runs.traces import Runs
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.run_spec import RunSpec


class ReplayJudge:
    """Judges the random numbers that the candidate draws."""

    name = "replay"

    def required_runs(self, case: Case) -> Sequence[RunSpec]:
        """No Runs of its own: the judge reads those that the comparison requests."""
        return []

    def judge(self, case: Case, runs: Runs, options: JudgeOptions) -> FindingsJudgement:
        """Apply the RNG rules to the candidate's first rung."""
        if not case.settings.rng:
            return FindingsJudgement(
                self.name, (), ["not checked: random numbers (--trainsafe-rng)"]
            )
        traces = _first_rung(case, runs)
        if traces is None:
            return FindingsJudgement(
                self.name, (), ["not checked: random numbers, because no Run finished"]
            )
        found = judge_rng(*traces, (*case.expect, *options.expect))
        findings = [
            finding
            for finding in found.findings
            if finding.verdict == "fail" or not is_accepted(finding.check, options.accept)
        ]
        notes = [f"not checked: {text}" for text in found.not_compared]
        return FindingsJudgement(self.name, findings, notes)


def _first_rung(case: Case, runs: Runs) -> tuple[Trace, Trace] | None:
    """Candidate and reference of the first rung in which both ran."""
    for dtype in case.rungs:
        try:
            # The comparison's own Runs, which below float64 replay the reference's decisions.
            decided = runs.reference.decided(dtype)
            return runs.candidate.replaying(decided).at(dtype), runs.reference.at(dtype)
        except GroupFailure:
            continue
    return None
