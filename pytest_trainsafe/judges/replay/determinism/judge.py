"""Judges whether a Run is deterministic: the same RunSpec must record the same bits again.

Called by `assert_deterministic`. Each repetition runs with other string hashes and other contents
of fresh memory (`variation`), so that a result that depends on one of these differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from msgspec import structs

from pytest_trainsafe.core.finding import Finding, Pattern
from pytest_trainsafe.judges.contract import FindingsJudgement, JudgeOptions
from pytest_trainsafe.judges.replay.determinism.cause import Cause, Code, cause_of_draws, find_cause
from pytest_trainsafe.judges.replay.determinism.divergence import Divergence, first_divergence
from pytest_trainsafe.judges.replay.determinism.variation import not_varied, variables
from pytest_trainsafe.runs.traces import Runs, Traces
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.run_spec import RunSpec

_HOW = {
    "values": "differs",
    "shape": "has another dtype or shape",
    "missing": "is missing",
    "added": "exists only in this Run",
    "order": "is recorded in another order, with the same values",
    "inputs": "the model receives different inputs",
    "steps": "the optimizer steps in only one of the Runs",
}

#: What follows from each cause, in a few words.
_SHORT: dict[Code, str] = {
    "order": "depends on the order of a set or of hashes",
    "uninitialised": "depends on uninitialised memory",
    "unseeded": "depends on a generator without a fixed seed",
    "time": "depends on the time",
    "process": "depends on the process",
    "operator": "depends on a nondeterministic operator",
    "unknown": "differs between equal Runs",
}


@dataclass(frozen=True, slots=True)
class DeterminismJudgement(FindingsJudgement):
    """The judgement of `assert_deterministic`."""

    text: ClassVar[str] = "pytest_trainsafe.judges.replay.determinism.text"


@dataclass(frozen=True, slots=True)
class DeterminismJudge:
    """Judges whether the Run of the first rung records the same bits `repeats` times."""

    repeats: int
    name = "replay"

    def required_runs(self, case: Case) -> Sequence[RunSpec]:
        """Nothing: the Runs depend on the fixture, not on the Case alone."""
        return []

    def judge(self, case: Case, runs: Runs, options: JudgeOptions) -> DeterminismJudgement:
        """Compares the repetitions of the fixture's Run."""
        traces = runs.candidate
        point = case.point if traces.role == "candidate" else case.reference_point
        what = f"{case.program.path} at {point.without('dtype')}"
        found = judge_determinism(traces, self.repeats)
        return DeterminismJudgement(self.name, found.findings, found.not_compared, what=what)


def judge_determinism(traces: Traces, repeats: int) -> FindingsJudgement:
    """Compare the Run of the first rung with `repeats` - 1 repetitions of it.

    Raises GroupFailure if the ranks of a Run did not finish.
    """
    assert repeats >= 2, repeats
    spec = traces.spec(traces.case.rungs[0])
    again = [
        structs.replace(spec, repeat=number, environ=variables(number, number))
        for number in range(1, repeats)
    ]
    for each in (spec, *again):
        traces.runs.start(each)
    first = traces.runs.get(spec).trace
    notes = [*not_varied(first.manifest.device), *_unrecorded(first)]
    if not any(rank.tensors for rank in first.ranks):
        return FindingsJudgement("replay", [_nothing(first)], notes)
    for each in again:
        second = traces.runs.get(each).trace
        found = first_divergence(first, second)
        if found is not None:
            cause = _cause(traces, spec, found, (first, second))
            return FindingsJudgement(
                "replay", [finding(first, found, cause, each.repeat, repeats)], notes
            )
    return FindingsJudgement("replay", [], notes)


def _cause(traces: Traces, spec: RunSpec, found: Divergence, pair: tuple[Trace, Trace]) -> Cause:
    settings = traces.case.settings
    why = ""
    if not settings.localize:
        why = "the operators were not recorded (--trainsafe-localize off)"
    elif spec.point.get("compile", False):
        why = "the operators of compiled code are not recorded"
    if why:
        # Between these two Runs all of `variation` differs, and a seed may depend on it: the
        # draw is only a hint.
        drawn = cause_of_draws(*pair, found)
        hint = "" if drawn is None else f". The first draw from another state: {drawn.draw}"
        source = "" if drawn is None else drawn.source
        return Cause("unknown", f"the cause is not known: {why}{hint}", source)

    def make(specs: Sequence[RunSpec]) -> list[Trace]:
        for each in specs:
            traces.runs.start(each)
        return [traces.runs.get(each).trace for each in specs]

    return find_cause(spec, found, make)


def finding(first: Trace, found: Divergence, cause: Cause, number: int, repeats: int) -> Finding:
    """The finding that Run `number` (counted from 0) of `repeats` differs from the `first` one."""
    module = None if found.where is None else found.where.module
    event = None if module is None else first.ranks[found.rank].modules.get(module)
    by = "" if found.greatest is None else f" by up to {found.greatest:.1e}"
    others = found.differing - 1
    rest = f"; {others} of {found.total - 1} other tensors differ too" if others > 0 else ""
    message = (
        f"{_HOW[found.how]}{by} on rank {found.rank} in Run {number + 1} of {repeats}, "
        f"which repeats Run 1{rest}"
    )
    operator = cause.operator
    check = f"determinism:{cause.code}"
    text = "" if operator is None else operator.text
    evidence: list[tuple[str, str | int | float | bool]] = [("rank", found.rank)]
    evidence += [("step", found.step), ("run", number + 1), ("differing", found.differing)]
    if operator is not None:
        evidence += [("operator", operator.event.name), ("line", operator.event.line)]
    return Finding(
        verdict="fail",
        judge="replay",
        check=check,
        message=message,
        where=found.where,
        subject=found.subject,
        evidence=tuple(evidence),
        dtype=first.manifest.dtype,
        order=found.order,
        pattern=Pattern(check, text, "", cause.text, short=_SHORT[cause.code]),
        module_class="" if event is None else event.cls,
        source=cause.source,
    )


def _nothing(trace: Trace) -> Finding:
    kinds = " ".join(trace.manifest.spec.kinds)
    message = f"no tensor was recorded, so nothing can differ (kinds recorded: {kinds or 'all'})"
    return Finding(
        verdict="inconclusive", judge="replay", check="determinism:nothing", message=message
    )


def _unrecorded(trace: Trace) -> list[str]:
    """Sentences on what the Runs computed but their traces do not show, without duplicates."""
    notes = [text for rank in trace.ranks for text in rank.note("not_compared")]
    compiled = {name for rank in trace.ranks for name in rank.note("compiled")}
    if compiled:
        notes.append(f"not compared: {len(compiled)} modules inside of compiled regions")
    return list(dict.fromkeys(notes))
