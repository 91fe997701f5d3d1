"""The registered replay judge, which applies the rules on random numbers.

It judges one pair of Runs: candidate and reference in the first dtype of the test (`Case.rungs`) in
which both finish.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_trainsafe.judges.contract import FindingsJudgement, JudgeOptions
from pytest_trainsafe.judges.replay.rng.ledger_rules import judge_rng
from pytest_trainsafe.judges.replay.rng.overwritten import overwritten
from pytest_trainsafe.launch import GroupFailure
from pytest_trainsafe.runs.traces import Runs
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.run_spec import RunSpec


class ReplayJudge:
    """Judges the random numbers that the candidate draws."""

    name = "replay"

    def required_runs(self, case: Case) -> Sequence[RunSpec]:
        """Nothing: the judge reads the Runs that the comparison requests."""
        return []

    def judge(self, case: Case, runs: Runs, options: JudgeOptions) -> FindingsJudgement:
        """Apply the rules on random numbers, in the first dtype in which both Runs finish."""
        if not case.settings.rng:
            return FindingsJudgement(
                self.name, (), ["not checked: random numbers (--trainsafe-rng=off)"]
            )
        traces = _first_rung(case, runs)
        if traces is None:
            return FindingsJudgement(
                self.name, (), ["not checked: random numbers, because no Run finished"]
            )
        rules = (*case.expect, *options.expect)
        found = judge_rng(*traces, rules, compared=True).accepting(options.accept)
        notes = [*overwritten(*traces), *(f"not checked: {text}" for text in found.not_compared)]
        return FindingsJudgement(self.name, found.findings, notes, drawn=found.drawn)


def _first_rung(case: Case, runs: Runs) -> tuple[Trace, Trace] | None:
    """The traces of candidate and reference; None if there is no dtype in which both Runs finish.

    Both traces are in the first such dtype of `case.rungs`.
    """
    for dtype in case.rungs:
        try:
            # The comparison's own Runs, which below float64 replay the reference's decisions.
            decided = runs.reference.decided(dtype)
            return runs.candidate.replaying(decided).at(dtype), runs.reference.at(dtype)
        except GroupFailure:
            continue
    return None
