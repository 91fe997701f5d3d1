"""The registered compare judge, which runs the ladder: it compares in one dtype after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_trainsafe.core.rungs.table import rung_named
from pytest_trainsafe.judges.compare.judgement import LadderJudgement
from pytest_trainsafe.judges.compare.ladder.ladder import climb
from pytest_trainsafe.judges.contract import JudgeOptions
from pytest_trainsafe.runs.specs import Role, spec_of
from pytest_trainsafe.runs.traces import Runs
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.trace.run_spec import RunSpec


class CompareJudge:
    """The judge that compares a candidate with its reference in one dtype after another."""

    name = "compare"
    of_rungs = True

    def required_runs(self, case: Case) -> Sequence[RunSpec]:
        """The Runs in the first dtype that can start at once; the ladder requests all others later.

        The candidate may have to replay decisions of the reference in the first dtype.  Its Run is
        then requested later, when the reference has finished.
        """
        first = case.rungs_of(self.name)[0]
        waits = rung_named(first).awaits_decisions
        roles: tuple[Role, ...] = ("candidate", "reference")
        return [spec_of(case, role, first) for role in roles if role != "candidate" or not waits]

    def judge(self, case: Case, runs: Runs, options: JudgeOptions) -> LadderJudgement:
        """Compare the candidate with its reference, dtype by dtype, down to the first failure."""
        candidate, reference, own = runs.candidate, runs.reference, case.rungs_of(self.name)
        if own != case.rungs:
            case = replace(case, settings=case.settings._replace(dtypes=own))
            candidate, reference = (replace(each, case=case) for each in (candidate, reference))
        return climb(candidate, reference, options.loosen, tuple(options.accept))
