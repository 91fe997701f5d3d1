"""Judges whether a Run that is resumed from a checkpoint continues as if never interrupted.

Called by `assert_resumable`. It makes three Runs: one that never saves, one that saves after a step
and continues, and one in new processes that loads the checkpoint and takes the remaining steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from msgspec import structs

from pytest_trainsafe.config.checks import is_accepted
from pytest_trainsafe.core.finding import Finding, StepSubject
from pytest_trainsafe.core.tensor_id import INITIAL
from pytest_trainsafe.core.usage import listing
from pytest_trainsafe.errors import ArgumentError
from pytest_trainsafe.judges.compare.judgement import LadderJudgement
from pytest_trainsafe.judges.contract import FindingsJudgement, JudgeOptions
from pytest_trainsafe.judges.replay.determinism.divergence import Divergence, first_divergence
from pytest_trainsafe.judges.replay.resume.arguments import Resumption
from pytest_trainsafe.judges.replay.resume.beside import not_continued
from pytest_trainsafe.judges.replay.resume.causes import causes_of
from pytest_trainsafe.judges.replay.resume.continued import (
    describe_difference,
    first_difference,
    step_numbers,
)
from pytest_trainsafe.judges.replay.resume.difference import ORDER, Difference
from pytest_trainsafe.judges.replay.resume.layout import judge_layout
from pytest_trainsafe.judges.replay.resume.state import entry_differences
from pytest_trainsafe.judges.replay.resume.streams.find import stream_differences
from pytest_trainsafe.judges.replay.rng.draws import Draws, describe_draw
from pytest_trainsafe.runs.rounding import rounding_of
from pytest_trainsafe.runs.traces import Runs, Traces
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.rng.events import SWITCHED_OFF, LedgerGap
from pytest_trainsafe.trace.run_spec import Resume, RunSpec


@dataclass(frozen=True, slots=True)
class ResumedJudgement(FindingsJudgement):
    """The judgement of a resumed Run.

    `compared` is the comparison with the training resumed at another Point; None if none was
    made. `dtype` is the dtype of the Runs that are judged, `steps` the number of their steps, and
    `at_step` the number of steps before the checkpoint.
    """

    compared: LadderJudgement | None = None
    dtype: str = ""
    at_step: int = 0
    steps: int = 0
    panels: ClassVar[str] = "pytest_trainsafe.judges.replay.resume.panels"
    text: ClassVar[str] = "pytest_trainsafe.judges.replay.resume.text"


@dataclass(frozen=True, slots=True)
class ResumeJudge:
    """Judges whether the training of a fixture can be interrupted and resumed as described."""

    resumption: Resumption
    name = "replay"

    def required_runs(self, case: Case) -> Sequence[RunSpec]:
        """Nothing: the Runs depend on the fixture, not on the Case alone."""
        return []

    def judge(self, case: Case, runs: Runs, options: JudgeOptions) -> ResumedJudgement:
        """Interrupts and resumes the fixture's Run."""
        judgement = judge_resumable(runs.candidate, self.resumption)
        where = f"{self.resumption.point} in {judgement.dtype}"
        return replace(
            judgement,
            what=(
                f"{case.program.path} at {where}, interrupted after step "
                f"{self.resumption.at_step - 1} and resumed"
            ),
        )


def judge_resumable(traces: Traces, resumption: Resumption) -> ResumedJudgement:
    """Judge the Runs in each dtype, saved and resumed as `resumption` says, up to a first failure.

    Raises GroupFailure if the ranks of a Run did not finish, and ArgumentError if the program
    does not take the requested steps.
    """
    left = [each for each in traces.case.rungs if each not in resumption.dtypes]
    if left:
        note = (
            f"assert_resumable ran in {listing(resumption.dtypes)} only, so a fault that exists "
            f"only in {listing(left)} is not found; pass dtypes=[...]"
        )
        traces.runs.notes[note] = None
    notes: list[str] = []
    for dtype in resumption.dtypes:
        judgement = _judge_in(dtype, traces, resumption)
        notes += [each for each in judgement.not_compared if each not in notes]
        if judgement.verdict != "pass":
            break
    return replace(judgement, not_compared=notes)


def _judge_in(dtype: str, traces: Traces, resumption: Resumption) -> ResumedJudgement:
    at_step, steps, resume_point = resumption.at_step, resumption.steps, resumption.resume_point
    spec = structs.replace(
        traces.spec(dtype),
        steps=steps,
        **({"watch_casts": True} if resume_point is not None else {}),
    )
    # While casts are watched, the RNG ledger does not see all of torch's functions, so the Runs
    # that are saved and resumed do not watch casts.
    interrupted = structs.replace(spec, watch_casts=False)
    saving = structs.replace(interrupted, resume=Resume(at_step, None, *resumption.save))
    for each in (spec, saving):
        traces.runs.start(each)
    whole = traces.runs.get(spec).trace
    last = _require_steps(whole, at_step, steps)
    saved = traces.runs.get(saving).trace
    resuming = structs.replace(interrupted, resume=Resume(at_step, saving, *resumption.load))
    resumed = traces.runs.get(resuming).trace
    _require_rest(resumed, at_step, last)
    found = differences(whole, saved, resumed, at_step, last)
    accepted = traces.case.settings.accept
    findings = [each for each in found if not _is_excused(each, accepted)]
    notes = not_compared(resumed)
    traces.runs.notes.update(dict.fromkeys(f"assert_resumable did not compare {n}" for n in notes))
    if findings or resume_point is None:
        return ResumedJudgement("replay", findings, notes, None, dtype, at_step, last)
    elsewhere, compared = judge_layout(traces, resuming, resume_point, last, rounding_of(whole))
    return ResumedJudgement("replay", elsewhere, notes, compared, dtype, at_step, last)


def differences(
    whole: Trace, saved: Trace, resumed: Trace, at_step: int, last: int
) -> list[Finding]:
    """The findings on three Runs of a training of `last` steps.

    `whole` is uninterrupted, `saved` saves a checkpoint after `at_step` steps and continues,
    and `resumed` continues from that checkpoint.
    """
    dtype = whole.manifest.dtype
    apart = first_divergence(whole, saved)
    if apart is not None:
        return [_of_saving(apart, saved, at_step).finding(dtype, describe_difference(apart))]
    found = first_difference(whole, resumed, at_step)
    if found is None:
        if nothing := _nothing(whole, resumed, at_step):
            return [nothing.finding(dtype)]
        causes = _latent(whole, saved, resumed, at_step, last)
        average = not_continued(saved, resumed, at_step)
        causes += [] if average is None else [average]
        return [each.finding(dtype) for each in _in_order(causes)]
    causes = causes_of(found, whole, saved, resumed, at_step, last)
    return [each.finding(dtype, describe_difference(found)) for each in _in_order(causes)]


def not_compared(resumed: Trace) -> list[str]:
    """Sentences on what was not compared in a resumed Run, without duplicates."""
    notes = [text for rank in resumed.ranks for text in rank.note("not_compared")]
    if not any(step.optimizer_stepped for rank in resumed.ranks for step in rank.steps):
        notes.append("the optimizer's state (ctx.watch was given no optimizer that stepped)")
    gaps = {gap for rank in resumed.ranks for gap in rank.events_of(LedgerGap)}
    if SWITCHED_OFF in gaps:
        notes.append("random numbers (--trainsafe-rng off)")
    notes += [f"{gap.what}: {gap.why}" for gap in sorted(gaps - {SWITCHED_OFF}, key=repr)]
    compiled = {name for rank in resumed.ranks for name in rank.note("compiled")}
    if compiled:
        notes.append(f"{len(compiled)} modules inside of compiled regions")
    return list(dict.fromkeys(notes))


def _nothing(whole: Trace, resumed: Trace, at_step: int) -> Difference | None:
    """A Difference with the code "nothing" if equal results of the Runs prove nothing; else None.

    They prove nothing if no tensor was recorded after the checkpoint, or if no parameter changed
    before it. In the second case, a training that loads nothing has the same results.
    """
    ids = [id for rank in resumed.ranks for id in rank.tensors if id.step >= at_step]
    moved, watched = False, False
    for rank in whole.ranks:
        for id, event in rank.tensors.items():
            if id.kind == "param" and id.step == at_step - 1:
                watched = True
                first = rank.tensors.get(structs.replace(id, step=INITIAL))
                moved = moved or first is None or first.hash != event.hash
    if ids and (moved or not watched):
        return None
    why = (
        "no parameter changed before the checkpoint, so a training that loads nothing would "
        "continue in the same way"
        if ids
        else "no tensor was recorded after the checkpoint, so nothing can differ"
    )
    cause = (
        "let the training take steps that change parameters before the checkpoint"
        if ids
        else "record tensors of every kind"
    )
    return Difference("nothing", why, cause, verdict="inconclusive")


def _latent(whole: Trace, saved: Trace, resumed: Trace, steps: int, last: int) -> list[Difference]:
    """Differences in state that change no result of the `last` steps, but may change later ones."""
    parts = ("lr_schedule", "scaler")
    causes = [each for each in entry_differences(saved, resumed, last) if each.code in parts]
    streams = stream_differences(whole, saved, resumed, steps, last, seeds=False)
    causes += [each.difference for each in streams]
    return [
        replace(
            each,
            message=f"{each.message}; no result of {last} steps differs because of it",
            cause=f"{each.cause}. To see whether results depend on this state, take more steps "
            "(steps=)",
            verdict="inconclusive",
        )
        for each in causes
    ]


def _in_order(causes: Sequence[Difference]) -> list[Difference]:
    order = {code: number for number, code in enumerate(ORDER)}
    return sorted(causes, key=lambda each: order.get(each.code, len(order)))


def _of_saving(apart: Divergence, saved: Trace, at_step: int) -> Difference:
    """Explains the difference `apart` between the uninterrupted Run and the Run that saves.

    After the checkpoint, saving is the cause. Before it, the program is nondeterministic.
    """
    if apart.step < at_step:
        return Difference(
            "nondeterministic",
            "two uninterrupted Runs differ before the checkpoint, so a resumed one cannot be "
            "compared bit by bit",
            "find the cause with assert_deterministic",
            apart.rank,
            apart.where,
            apart.subject,
            verdict="inconclusive",
        )
    draws = (
        draw for rank in Draws.of(saved).by_rank for draw in rank if draw.event.phase == "save"
    )
    draw = next(draws, None)
    drew = "" if draw is None else f"; the code that saves draws {describe_draw(draw)}"
    return Difference(
        "save",
        f"saving a checkpoint changes how the training continues{drew}",
        "the code that saves changes the state of the training: save copies, and draw random "
        "numbers inside torch.random.fork_rng(). If it does not, the program may be "
        "nondeterministic: run assert_deterministic",
        apart.rank,
        apart.where,
        None if apart.where is not None else StepSubject(apart.step),
        source="" if draw is None else draw.event.line,
    )


def _is_excused(finding: Finding, accept: Sequence[str]) -> bool:
    return finding.verdict == "inconclusive" and is_accepted(finding.check, accept)


def _require_steps(whole: Trace, at_step: int, steps: int | None) -> int:
    """The number of steps of the uninterrupted Run; ArgumentError if it is not `steps`."""
    taken = len(step_numbers(whole))
    name = whole.manifest.program
    if steps is not None and taken != steps:
        raise ArgumentError(
            f"assert_resumable was given steps={steps}, but {name} takes {taken} steps; give "
            f"steps={taken}, or let the program's loop run over ctx.steps({taken}), so that a test "
            "can choose the number"
        )
    if at_step >= taken:
        raise ArgumentError(
            f"assert_resumable was given at_step={at_step}, but {name} takes {taken} steps; "
            f"at_step is the number of steps before the checkpoint and must be 1 to {taken - 1}"
            if taken > 1
            else f"assert_resumable cannot interrupt {name}, which takes one step; give steps=2 "
            "or more, and let its loop run over ctx.steps(...)"
        )
    return taken


def _require_rest(resumed: Trace, at_step: int, last: int) -> None:
    """Raises ArgumentError unless a resumed Run takes the remaining steps."""
    taken = len(step_numbers(resumed))
    if taken != last - at_step:
        raise ArgumentError(
            f"{resumed.manifest.program} takes {last} steps, but when it is resumed after step "
            f"{at_step - 1} (counted from 0), it takes {taken} more, not {last - at_step}; let its "
            f"loop run over ctx.steps({last}), or begin it at ctx.first_step"
        )
