"""Judges whether results depend on when asynchronous collectives complete.

Called by `assert_schedule_independent`.  The program runs twice in ranks that share a process: once
each asynchronous call completes as early as it can, and once as late as it must.  A correct program
computes the same bits.  Where it does not, the uses of buffers in flight, which the ranks of the
second Run record, name the missing wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from msgspec import structs

from pytest_trainsafe.core.finding import CallSubject, Finding, Pattern
from pytest_trainsafe.core.schedule import LATE, Schedule
from pytest_trainsafe.judges.contract import FindingsJudgement, JudgeOptions
from pytest_trainsafe.judges.replay.determinism.divergence import Divergence, first_divergence
from pytest_trainsafe.judges.replay.schedules.events import AsynchronousCalls, EarlyUse
from pytest_trainsafe.runs.traces import Runs, Traces
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.run_spec import RunSpec

#: The most findings of one judgement.
MAX_FINDINGS = 8

#: Values that the recorder takes while the program goes on, perhaps from a buffer in flight.
_TAKEN_EARLY = ("activation", "activation_grad", "param_grad", "main_grad")


@dataclass(frozen=True, slots=True)
class ScheduleJudgement(FindingsJudgement):
    """The judgement of `assert_schedule_independent`."""

    text: ClassVar[str] = "pytest_trainsafe.judges.replay.schedules.text"


@dataclass(frozen=True, slots=True)
class ScheduleJudge:
    """Judges whether the Run of the first rung is the same in two schedules."""

    name = "replay"

    def required_runs(self, case: Case) -> Sequence[RunSpec]:
        """Nothing: the Runs depend on the fixture, not on the Case alone."""
        return []

    def judge(self, case: Case, runs: Runs, options: JudgeOptions) -> ScheduleJudgement:
        """Compares the two Runs of the fixture's program."""
        traces = runs.candidate
        point = case.point if traces.role == "candidate" else case.reference_point
        early, late = _specs(traces)
        runs.start((early, late))
        found = judge_schedules(runs.get(early).trace, runs.get(late).trace)
        judgement = ScheduleJudgement(
            self.name, found, what=f"{case.program.path} at {point.without('dtype')}"
        )
        return judgement.accepting(options.accept)


def _specs(traces: Traces) -> tuple[RunSpec, RunSpec]:
    spec = structs.replace(traces.spec(traces.case.rungs[0]), trusted=False, device="cpu")
    early = structs.replace(spec, schedule=Schedule())
    return early, structs.replace(spec, schedule=LATE)


def judge_schedules(early: Trace, late: Trace) -> list[Finding]:
    """The findings on a program that ran in an early and in a late schedule."""
    calls = sum(each.count for rank in late.ranks for each in rank.events_of(AsynchronousCalls))
    found = first_divergence(early, late)
    if not calls and found is None:
        return [_inconclusive("schedule:nothing", "the program issues no asynchronous collective")]
    if found is None:
        return []
    if not _beyond_recording(early, late):
        return [
            _inconclusive(
                "schedule:recorded",
                "the only values that differ are activations or gradients, which may have been "
                f"recorded while they were in flight, such as {found.where or found.subject}",
            )
        ]
    # What the recorder uses is no fault of the program.
    own = [each for each in _uses(late) if not each.use.recorder]
    if own:
        return [_finding(each, found, late) for each in own[:MAX_FINDINGS]]
    return [_unnamed(found, late)]


@dataclass(frozen=True, slots=True)
class _Use:
    """An early use, and the ranks that made it."""

    use: EarlyUse
    ranks: tuple[int, ...]


def _uses(late: Trace) -> Iterable[_Use]:
    """The early uses, one for each pair of lines: the read, if there is one."""
    by_lines: dict[tuple[str, str], list[tuple[int, EarlyUse]]] = {}
    for rank in late.ranks:
        for each in rank.events_of(EarlyUse):
            by_lines.setdefault((each.issued, each.at), []).append((rank.rank, each))
    for found in by_lines.values():
        first = next((use for _, use in found if use.access == "read output"), found[0][1])
        ranks = (rank for rank, use in found if use.access == first.access)
        yield _Use(first, tuple(dict.fromkeys(ranks)))


def _beyond_recording(early: Trace, late: Trace) -> bool:
    """Whether a value differs that the program reported, or that was recorded after a step."""
    for one, other in zip(early.ranks, late.ranks, strict=True):
        for id, event in one.tensors.items():
            same = id in other.tensors and other.tensors[id].hash == event.hash
            if not same and id.kind not in _TAKEN_EARLY:
                return True
    return False


def _finding(found: _Use, differs: Divergence, late: Trace) -> Finding:
    use, ranks = found.use, found.ranks
    reads = use.access == "read output"
    check = "schedule:missing_wait" if reads else "schedule:reused_in_flight"
    did = {
        "read output": "is read before a wait",
        "write output": "is overwritten before a wait, and then written by the call",
        "write input": "is overwritten while the call may still read it",
    }[use.access]
    who = "rank " + ", ".join(map(str, ranks[:4])) + (", ..." if len(ranks) > 4 else "")
    by = "" if differs.greatest is None else f" by up to {differs.greatest:.1e}"
    tensor = "a result" if differs.where is None else str(differs.where)
    message = (
        f"the buffer of {use.call}, issued at {use.issued}, {did}: by {use.operator} at {use.at} "
        f"on {who}, in step {use.step}. {tensor} differs{by} between a Run in which the call "
        "completes at once and one in which it completes at the wait"
    )
    cause = (
        "a wait for this call is missing before this line"
        if reads
        else "the buffer must not be changed before the wait for this call"
    )
    return Finding(
        verdict="fail",
        judge="replay",
        check=check,
        message=message,
        where=differs.where,
        subject=None if differs.where is not None else CallSubject(use.call, use.issued),
        evidence=(
            *(("issued", use.issued), ("used", use.at), ("access", use.access)),
            *(("operator", use.operator), ("call", use.call), ("rank", ranks[0])),
            ("step", use.step),
        ),
        dtype=late.manifest.dtype,
        order=differs.order,
        pattern=Pattern(check, f"issued at {use.issued}, used at {use.at}", "", cause, short=cause),
        source=use.at,
    )


def _unnamed(differs: Divergence, late: Trace) -> Finding:
    by = "" if differs.greatest is None else f" by up to {differs.greatest:.1e}"
    message = (
        f"differs{by} on rank {differs.rank} between two schedules, although no buffer in flight "
        "was used: the result depends on the order in which ranks run, or memory was used through "
        "NumPy or C++"
    )
    return Finding(
        verdict="fail",
        judge="replay",
        check="schedule:order",
        message=message,
        where=differs.where,
        subject=differs.subject,
        dtype=late.manifest.dtype,
        order=differs.order,
        evidence=(("rank", differs.rank), ("step", differs.step)),
    )


def _inconclusive(check: str, message: str) -> Finding:
    return Finding(verdict="inconclusive", judge="replay", check=check, message=message)
