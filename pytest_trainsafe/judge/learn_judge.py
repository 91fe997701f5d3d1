"""The registered learn judge: checks packs of invariants on the candidate's Run.

It requests one more Run, in the recipe's dtype, in which the ranks observe the API calls and states
that the packs' invariants are about.  If a pack is to be learned from the test, the judge requests
the Run too, and its ranks observe everything.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec import structs

from pytest_trainsafe.config.checks import is_accepted
from pytest_trainsafe.core.finding import Finding, Verdict
from pytest_trainsafe.judge.contract import JudgeOptions, worst
from pytest_trainsafe.judge.learn.check.cluster import clusters
from pytest_trainsafe.judge.learn.check.findings import JUDGE, findings_of
from pytest_trainsafe.judge.learn.check.offline import check
from pytest_trainsafe.judge.learn.packs.pack import Pack
from pytest_trainsafe.judge.learn.registry import relations
from pytest_trainsafe.judge.learn.relation import Relation
from pytest_trainsafe.judge.learn.run import ObservedRun
from pytest_trainsafe.judge.learn.use.deploy import load_packs, observation_of
from pytest_trainsafe.runs.specs import Role, spec_of
from pytest_trainsafe.runs.traces import Runs
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.trace.observed.file import UnseenCalls
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.run_spec import Observe, RunSpec


@dataclass(frozen=True, slots=True)
class LearnJudgement:
    """The result of checking a test's packs.

    `observed` is the path of the trace that was kept to learn from, "" if none was.
    """

    findings: Sequence[Finding] = ()
    not_compared: Sequence[str] = ()
    observed: str = ""
    judge: str = JUDGE

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of the findings."""
        return worst(finding.verdict for finding in self.findings)


class LearnJudge:
    """Judges whether the candidate satisfies the invariants of the test's packs."""

    name = JUDGE

    def required_runs(self, case: Case) -> Sequence[RunSpec]:
        """The observed Run if the test has packs or a pack is learned from it; else nothing."""
        spec = _spec(case, _packs(case))
        return [] if spec is None else [spec]

    def judge(self, case: Case, runs: Runs, options: JudgeOptions) -> LearnJudgement:
        """Check the packs on the observed Run, and keep its trace if a pack is learned from it."""
        packs = _packs(case)
        spec = _spec(case, packs)
        if spec is None:
            return LearnJudgement()
        trace = runs.get(spec).trace
        observed = str(runs.keep(spec)) if _teaches(case) else ""
        if not packs:
            return LearnJudgement(observed=observed)
        found = judge_trace(trace, packs, relations(case.settings.relations), options.accept)
        return LearnJudgement(found.findings, found.not_compared, observed)


def judge_trace(
    trace: Trace, packs: Sequence[Pack], known: Mapping[str, Relation], accept: Collection[str]
) -> LearnJudgement:
    """Check packs on what the ranks of a trace observed; the rest is as in `judge_packs`."""
    return judge_packs(observed_run(trace), packs, known, accept=accept, unseen=_unseen(trace))


def judge_packs(
    run: ObservedRun,
    packs: Sequence[Pack],
    known: Mapping[str, Relation],
    *,
    accept: Collection[str] = (),
    unseen: Sequence[str] = (),
) -> LearnJudgement:
    """Check packs on an observed run.

    If no invariant applies to the run, the result is inconclusive (`learn:nothing`), unless
    `accept` contains that check.  `known` maps names to relations (the forms of invariants), and
    `unseen` says what could not be observed.
    """
    checked = check(run, packs, known)
    findings = list(findings_of(clusters(checked.violations, known), known))
    if not checked.triggered and not is_accepted(f"{JUDGE}:nothing", accept):
        findings.append(_nothing(packs))
    notes = [*checked.not_checked.sentences(), *(f"not observed: {each}" for each in unseen)]
    return LearnJudgement(findings, notes)


def observed_run(trace: Trace) -> ObservedRun:
    """What the ranks of a trace observed."""
    manifest = trace.manifest
    tables = [trace.observed(rank) for rank in range(len(trace.ranks))]
    return ObservedRun(manifest.program, tables, manifest.versions)


def observed_spec(case: Case, observe: Observe, role: Role = "candidate") -> RunSpec:
    """The RunSpec of a Run in the recipe's dtype that records API calls and states, not tensors."""
    spec = spec_of(case, role, case.rungs[-1])
    return structs.replace(
        spec, observe=observe, record="sketch", kinds=("loss",), rng=False, watch_casts=False
    )


def _teaches(case: Case) -> bool:
    return bool(case.settings.learn) and case.healthy


def _packs(case: Case) -> Sequence[Pack]:
    settings = case.settings
    return load_packs(settings.packs, Path(settings.root), relations(settings.relations))


def _spec(case: Case, packs: Sequence[Pack]) -> RunSpec | None:
    if _teaches(case):
        return observed_spec(case, Observe())
    if packs:
        return observed_spec(case, observation_of(packs, relations(case.settings.relations)))
    return None


def _unseen(trace: Trace) -> list[str]:
    """Sentences on what the ranks should have observed but could not."""
    return list(
        dict.fromkeys(each.what for rank in trace.ranks for each in rank.events_of(UnseenCalls))
    )


def _nothing(packs: Sequence[Pack]) -> Finding:
    names = ", ".join(pack.name for pack in packs)
    count = sum(len(pack.invariants) for pack in packs)
    message = (
        f"none of the {count} invariants of {names} applied to this run, so nothing was checked. "
        "Use packs that were learned from programs of the same kind"
    )
    return Finding(verdict="inconclusive", judge=JUDGE, check=f"{JUDGE}:nothing", message=message)
