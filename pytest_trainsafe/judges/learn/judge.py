"""The registered learn judge: checks packs of invariants on the candidate's Run.

The judge requests one more Run, in the last of the dtypes in which the test is judged.  The ranks
of this Run observe the API calls and states that the packs' invariants are about.  The Run is also
requested if a pack is to be learned from the test; the ranks then observe everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_trainsafe.judges.contract import FindingsJudgement, JudgeOptions
from pytest_trainsafe.judges.learn import JUDGE, OBSERVED, REPORTED
from pytest_trainsafe.runs.traces import Runs
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.trace.run_spec import Observe, RunSpec

if TYPE_CHECKING:
    from pytest_trainsafe.judges.learn.packs.pack import Pack


class LearnJudge:
    """Judges whether the candidate satisfies the invariants of the test's packs."""

    name = JUDGE

    def required_runs(self, case: Case) -> Sequence[RunSpec]:
        """The observed Run, if the test has packs or a pack is learned from it; else no Run."""
        if not _concerns(case):
            return []
        return [_spec(case, _packs(case))]

    def judge(self, case: Case, runs: Runs, options: JudgeOptions) -> FindingsJudgement:
        """Check the packs on the observed Run, and keep its trace if a pack is learned from it."""
        if not _concerns(case):
            return FindingsJudgement(JUDGE)
        from pytest_trainsafe.judges.learn.registry import relations
        from pytest_trainsafe.judges.learn.use.judged import judge_trace, reported

        packs = _packs(case)
        spec = _spec(case, packs)
        trace = runs.get(spec).trace
        artefacts = {OBSERVED: str(runs.keep(spec))} if _teaches(case) else {}
        if not packs:
            return FindingsJudgement(JUDGE, artefacts=artefacts)
        settings = case.settings
        known = relations(settings.relations)
        suite = {*settings.packs} <= {*settings.suite_packs}
        if settings.packs_report and settings.suite_packs:
            names = dict(zip(settings.packs, packs, strict=True))
            shown = [names.pop(name) for name in settings.suite_packs]
            artefacts[REPORTED] = reported(judge_trace(trace, shown, known, (), suite=True))
            if not names:
                return FindingsJudgement(JUDGE, artefacts=artefacts)
            packs, suite = [*names.values()], False
        found = judge_trace(trace, packs, known, options.accept, suite=suite)
        return FindingsJudgement(JUDGE, found.findings, found.not_compared, artefacts=artefacts)


def _teaches(case: Case) -> bool:
    return bool(case.settings.learn) and case.healthy


def _concerns(case: Case) -> bool:
    """Whether there is anything to check or to learn.

    Most tests have no packs: for them the rest of this judge, some 50 modules, is not imported.
    """
    return bool(case.settings.packs) or _teaches(case)


def _packs(case: Case) -> Sequence[Pack]:
    from pytest_trainsafe.judges.learn.registry import relations
    from pytest_trainsafe.judges.learn.use.deploy import load_packs

    settings = case.settings
    return load_packs(settings.packs, Path(settings.root), relations(settings.relations))


def _spec(case: Case, packs: Sequence[Pack]) -> RunSpec:
    from pytest_trainsafe.judges.learn.registry import relations
    from pytest_trainsafe.judges.learn.use.deploy import observation_of, observed_spec

    if _teaches(case):
        return observed_spec(case, Observe())
    return observed_spec(case, observation_of(packs, relations(case.settings.relations)))
