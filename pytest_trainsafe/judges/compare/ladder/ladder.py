"""The ladder: judges a test's Runs dtype by dtype, widest first.

Each dtype is a rung.  float64 comes first: its rounding errors are too small to hide a bug.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_trainsafe.config.checks import is_accepted, require_known
from pytest_trainsafe.core.rungs.table import WIDEST, rung_named
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.comparison import Comparison
from pytest_trainsafe.judges.compare.fault.clause import words
from pytest_trainsafe.judges.compare.fault.located import Located
from pytest_trainsafe.judges.compare.guards.deterministic import not_deterministic
from pytest_trainsafe.judges.compare.guards.later_steps import settings_apart
from pytest_trainsafe.judges.compare.judgement import Advice, LadderJudgement, RungJudgement
from pytest_trainsafe.judges.compare.ladder.fixed_dtype import with_dtype_advice
from pytest_trainsafe.judges.compare.ladder.look_first import look_first
from pytest_trainsafe.judges.compare.ladder.one_rung import (
    compared,
    explained,
    judged_rung,
    of_tensors,
    rest_of,
)
from pytest_trainsafe.judges.compare.ladder.runs import make_rung, measured_again, more_samples
from pytest_trainsafe.judges.compare.ladder.summary import point_summary
from pytest_trainsafe.judges.compare.rerecord import tensors_to_record
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.judges.compare.unmatched import (
    CHECK,
    apart,
    may_follow,
    watch_line,
)
from pytest_trainsafe.judges.loosen import Loosen
from pytest_trainsafe.judges.one_thread import one_thread
from pytest_trainsafe.launch import GroupFailure
from pytest_trainsafe.launch.failure import hung, raised, reason
from pytest_trainsafe.report.sections import collecting
from pytest_trainsafe.sweep.point_summary import PointSummary

if TYPE_CHECKING:
    from pytest_trainsafe.judges.compare.declarations.proposal import Proposal
    from pytest_trainsafe.report.panels import Panel
    from pytest_trainsafe.runs.traces import Traces
    from pytest_trainsafe.sweep.case import Case


def climb(
    candidate: Traces, reference: Traces, loosen: Sequence[Loosen], accept: Sequence[str]
) -> LadderJudgement:
    """Judge every rung of a test, down to the first that fails.

    The ladder continues after an inconclusive rung, because a failure in a later one is more
    informative.  The default ladder skips float64 if the reference cannot run in it, or if the
    candidate raises the same exception in it twice and runs in the next rung.
    """
    case = candidate.case
    accepted = {*accept, *case.settings.accept}
    require_known(accepted)
    for number, dtype in enumerate(case.rungs):
        candidate.prefetch(dtype)  # first, because the look-up of a cached reference takes time
        reference.prefetch(dtype, noise=not number)
    measuring = _measuring(case)
    if measuring and measuring not in case.program.traits.dtypes:
        reference.prefetch(measuring)
    for traces in (candidate, reference):
        traces.stop_if_hung(case.rungs)
    ladder = _Ladder(candidate, reference, loosen, accepted)
    ended: list[tuple[str, GroupFailure]] = []
    rungs, shadow, left_out = _runnable(case, reference, ended)
    broken: tuple[str, GroupFailure] | None = None
    for dtype in rungs:
        rung = rung_named(dtype)
        shadowed = bool(rung.measured_by) and shadow
        try:
            failed = ladder.judge_rung(dtype, shadowed, last=dtype == rungs[-1])
        except GroupFailure as failure:
            may_lack = rung.optional and dtype != case.dtype and not case.settings.dtypes
            may_lack = may_lack and candidate.ended_in(dtype, failure)
            if not (may_lack and raised(failure.result)):
                # The same error in an earlier dtype was not due to that dtype, and came first.
                same = (each for each in ended if raised(each[1].result) & raised(failure.result))
                dtype, failure = next(same, (dtype, failure))
                raise with_dtype_advice(failure, dtype, case.dtype) from None
            broken = dtype, failure
            ended.append(broken)
            left_out.append(
                f"{dtype} was skipped: the candidate cannot run in it ({reason(failure.result)})"
            )
            continue
        if failed:
            ladder.explain(shadowed)
            break
    passes = not any(entry.failed for entry in ladder.judged)
    if broken is not None and passes and not candidate.fails_again(*broken):
        raise broken[1]  # not reproducible, so not caused by the dtype
    point, located = str(case.point), ladder.located
    judgement = LadderJudgement(case.program.name, point, ladder.judged, case, left_out, located)
    summary, placed = ladder.summary(judgement), ladder.placed()
    ran, reference_ran = ladder.ran()
    return replace(
        judgement,
        summary=summary,
        placed=placed,
        pictures=ladder.pictures(),
        ran=ran,
        reference_ran=reference_ran,
    )


class _Ladder:
    """The judged rungs of one test, from the widest down, with the seconds they took."""

    def __init__(
        self, candidate: Traces, reference: Traces, loosen: Sequence[Loosen], accepted: set[str]
    ) -> None:
        self.candidate = candidate
        self.reference = reference
        self.loosen = loosen
        self.accepted = accepted
        self.judged: list[RungJudgement] = []
        self.located: Located | None = None
        self.seconds = {"compare": 0.0}
        self._rung: RungTraces | None = None

    def judge_rung(self, dtype: str, shadowed: bool, last: bool) -> bool:
        """Judge at `dtype`; `last` says that no rung follows.  Returns whether it fails.

        Reference runs with noise measure rounding; if `shadowed`, one at a wider rung does so too.
        """

        def ahead() -> None:
            """Launch the Runs with noise of later rungs, which are needed after this one's.

            Then launch the next test's Runs, if all Runs that this test needs are known.
            """
            for later in self.candidate.case.rungs:
                self.reference.prefetch(later)
            if last or self.candidate.foreseen():
                self.candidate.runs.look_ahead()

        if shadowed:
            measuring = self.reference.at(rung_named(dtype).measured_by)
            self.reference = self.reference.measured_by(measuring)
        candidate, reference, screened = self.candidate, self.reference, None
        rung = make_rung(dtype, candidate, reference, shadowed, ahead)
        comparison = self._compare(rung)
        if comparison.suspects:
            candidate = candidate.keeping(tensors_to_record(comparison.suspects, rung.candidate))
            reference, screened = reference.in_full(), comparison
            rung = make_rung(dtype, candidate, reference, shadowed)
            comparison = self._compare(rung, screened)
        rung, comparison = measured_again(
            rung, comparison, dtype, reference, lambda again: self._compare(again, screened)
        )
        if comparison.failed:
            comparison = explained(rung, comparison)
        unsteady = not_deterministic(rung, comparison, dtype, reference)
        if unsteady is not None and not is_accepted(unsteady.check, self.accepted):
            comparison.findings.clear()  # a program that differs from itself cannot be compared
        self.judged.append(judged_rung(dtype, rung, comparison, self.accepted, unsteady))
        self._rung = rung
        return comparison.failed

    def explain(self, shadowed: bool) -> None:
        """Find the missing or wrong annotations that explain a failed rung, or the faulty code."""
        from pytest_trainsafe.judges.compare.ladder import known_axis, known_setting

        failed, rung = self.judged[-1], self._rung
        assert rung is not None
        known_setting.with_known_setting(rung, failed.comparison)
        failed.explained = self._declarations(rung, failed, shadowed)
        case = self.candidate.case
        if rung.numbers.exact:
            if case.settings.localize and not failed.explained:
                failed.not_compared.append(
                    f"not localised: Runs of {failed.dtype} cannot take random values between "
                    f"modules; judge the test in {WIDEST} for the code at fault"
                )
        elif (missing := failed.missing) is not None and missing.misspelt and not failed.explained:
            failed.not_compared.append(
                "not localised: modules are judged one by one by the layouts of their outputs; "
                "correct the annotation that matches nothing, and run again for the code at fault"
            )
        elif case.settings.localize and not failed.explained:
            held_up = self.candidate.runs.held_up  # while other test runs hold the ranks
            began = time.perf_counter() - held_up()
            self.located = _localize(self.candidate, self.reference, rung, failed)
            if self.located is not None:
                self.seconds["localize"] = time.perf_counter() - held_up() - began
                for each in filter(None, (failed, failed.rest)):
                    known_axis.with_known_axis(each.comparison, self.located)
        if self.located is None:
            from pytest_trainsafe.judges.compare.localize.search import wrong_line

            self.located = wrong_line(self.candidate, rung, failed)

    def _declarations(self, rung: RungTraces, failed: RungJudgement, shadowed: bool) -> bool:
        """Propose annotations for a failed rung.

        Returns whether annotations explain every failure, or may explain the first one.
        """
        from pytest_trainsafe.judges.compare.declarations import misaveraged
        from pytest_trainsafe.judges.compare.declarations.misdeclared import misdeclared, misfits
        from pytest_trainsafe.judges.compare.declarations.propose import has_missing, propose

        comparison = of_tensors(failed.comparison)
        lacking, unfit = has_missing(rung, comparison), misfits(rung, comparison)
        averaged = misaveraged.may_be_misaveraged(rung, comparison)
        if not lacking and not unfit and not averaged:
            return self._misspelt(rung, failed)
        whole = self._in_full(failed.dtype, shadowed)
        if whole is not None:
            rung, comparison = whole, of_tensors(compared(whole, self.loosen))
        wrong = proposal = means = None
        with one_thread():
            if averaged:
                means = misaveraged.misaveraged(rung, comparison, self.loosen)
            if unfit:
                wrong = misdeclared(rung, comparison, self.loosen)
            if lacking:
                proposal = propose(rung, comparison, self.loosen, self._again(failed.dtype))
        adds = proposal is not None and proposal.means is not None and proposal.settles
        if means is not None and not (means.only_adds and adds):
            failed.advice = Advice(misaveraged=means)
            return True
        written = _write(self.candidate.case, self.candidate, proposal)
        failed.advice = Advice(None, wrong, proposal, written, watch_line(rung.candidate))
        failed.rest = rest_of(failed.dtype, proposal, self.accepted)
        declared = wrong is not None and wrong.left is None
        settled = declared or (proposal is not None and proposal.settles)
        return settled or self._misspelt(rung, failed.rest or failed)

    def _misspelt(self, rung: RungTraces, failed: RungJudgement) -> bool:
        """Whether the first failure may follow from an annotation that matches nothing."""
        _, others = apart(failed.comparison.findings)
        return bool(others) and may_follow(rung.candidate, others[0].where)

    def _again(
        self, dtype: str
    ) -> Callable[[RungTraces, Comparison], tuple[RungTraces, Comparison]]:
        """A function that measures rounding again for a comparison with other layouts."""
        full = self.candidate.case.settings.record == "full"
        reference = self.reference if full else self.reference.in_full()

        def again(rung: RungTraces, comparison: Comparison) -> tuple[RungTraces, Comparison]:
            """Judge `rung` with more runs with noise, if too few may be why `comparison` failed."""
            judge = functools.partial(compare, loosen=self.loosen)
            return measured_again(rung, comparison, dtype, reference, judge)

        return again

    def _in_full(self, dtype: str, shadowed: bool) -> RungTraces | None:
        """The rung with the values of all tensors; None if they are already recorded."""
        if self.candidate.case.settings.record == "full":
            return None
        reference = self.reference.in_full()
        rung = make_rung(dtype, self.candidate.in_full(), reference, shadowed)
        assert self._rung is not None
        return more_samples(rung, dtype, reference, 1 + len(self._rung.resampled))

    def placed(self) -> Sequence[Panel]:
        """The stages of a pipeline and the collectives of a failure, if a page is made."""
        rung = self._rung
        if not collecting() or rung is None or not self.judged[-1].failed:
            return ()
        from pytest_trainsafe.judges.compare.ladder.collectives import collectives
        from pytest_trainsafe.judges.compare.ladder.stages import stages

        made = stages(rung.candidate, rung.reference), collectives(rung.candidate)
        return [panel for panel in made if panel is not None]

    def pictures(self) -> Sequence[Panel]:
        """The values of the first wrong tensors, taken while traces exist, if a page is made."""
        if not collecting() or self._rung is None:
            return ()
        from pytest_trainsafe.judges.compare.explain.pictures import pictures_of

        with one_thread():
            return pictures_of(self._rung, self.judged[-1].comparison.findings)

    def ran(self) -> tuple[frozenset[str], frozenset[str]]:
        """The lines that the Runs of a failure are known to have run, if a page is made.

        First those of the candidate, then those of its reference.
        """
        if not collecting() or self._rung is None or not self.judged[-1].failed:
            return frozenset(), frozenset()
        from pytest_trainsafe.judges.compare.localize.code.ran import lines_that_ran

        return lines_that_ran(self._rung.candidate), lines_that_ran(self._rung.reference)

    def summary(self, judgement: LadderJudgement) -> PointSummary:
        """This Point's entry in the terminal's summary."""
        candidate = self.candidate
        seconds = {**candidate.seconds, **self.seconds}
        summary = point_summary(judgement, seconds)
        summary["program"] = judgement.program
        summary["axes"] = dict(candidate.case.point)
        if self.located is not None and self.located.faults:
            summary["faults"] = list(self.located.faults)
        failing = [f for f in self.judged[-1].comparison.findings if f.verdict == "fail"]
        if collecting() and self._rung is not None and judgement.verdict == "fail":
            from pytest_trainsafe.judges.compare.ladder.facts import facts_of
            from pytest_trainsafe.judges.compare.ladder.left_out import left_out

            apart = settings_apart(self._rung.candidate, self._rung.reference)
            trace, comparison = self._rung.candidate, self.judged[-1].comparison
            facts = facts_of(candidate.case, trace, failing, self.located, apart)
            summary["facts"] = [*facts, *left_out(self._rung, comparison)]
        led = summary.get("first", {}).get("check") == CHECK
        if self.located is not None and self.located.source and not led:
            source, what = look_first(self.located, failing)
            summary["look_at"] = {"source": source, "what": words(what)}
        if self.reference.runs.reused:
            summary["references"] = dict(self.reference.runs.reused)
        unlooked = dict.fromkeys(text for entry in self.judged for text in entry.not_compared)
        # Where the rounding of bfloat16 is allowed, mistakes of a percent pass.
        widened = [each.widened for each in self.judged if rung_named(each.rounding).low]
        notes = [*judgement.left_out, *filter(None, widened), *unlooked, *candidate.runs.notes]
        summary["notes"] = notes
        return summary

    def _compare(self, rung: RungTraces, screened: Comparison | None = None) -> Comparison:
        began = time.perf_counter()
        comparison = compared(rung, self.loosen, screened)
        self.seconds["compare"] += time.perf_counter() - began
        return comparison


def _write(case: Case, candidate: Traces, proposal: Proposal | None) -> str:
    """Write a proposal to a file if the user requested it.  Returns the file, "" for none."""
    if proposal is None or not (case.settings.annotate and proposal.certain):
        return ""
    from pytest_trainsafe.annotations.write import write_annotations

    written = write_annotations(
        proposal.certain, proposal.file, case.nodeid, case.settings.annotate, proposal.model
    )
    candidate.runs.notes[f"annotations that {case.nodeid} lacks: {written}"] = None
    return written


def _localize(
    candidate: Traces, reference: Traces, rung: RungTraces, failed: RungJudgement
) -> Located | None:
    from pytest_trainsafe.judges.compare.localize.search import localize_rung

    with one_thread():
        return localize_rung(candidate, reference, rung, failed)


def _runnable(
    case: Case, reference: Traces, ended: list[tuple[str, GroupFailure]]
) -> tuple[list[str], bool, list[str]]:
    """The rungs to judge, whether one can measure the others' rounding, and notes on skipped ones.

    The first rung is skipped if the reference cannot run in it.  The test fails instead if the user
    requested this rung, if it is the Point's own, or if the reference hangs.  If only the candidate
    cannot run in the rung that measures the others, the reference's Run in it still measures
    rounding.  A dtype in which the reference cannot run is added to `ended`.
    """
    rungs, measuring = list(case.rungs), _measuring(case)
    alone = bool(measuring) and measuring not in case.program.traits.dtypes
    if not alone and (case.settings.dtypes or rungs[0] == case.dtype):
        return rungs, measuring in rungs, []
    try:
        reference.at(measuring if alone else rungs[0])
    except GroupFailure as failure:
        if hung(failure.result):
            raise  # a hang is no property of a dtype, and would cost the timeout once more
        why = reason(failure.result)
        lost = f"the measurement of rounding in {measuring}" if alone else rungs[0]
        it = measuring if alone else "it"
        note = f"{lost} was skipped: the reference cannot run in {it} ({why})"
        ended.append((measuring if alone else rungs[0], failure))
        return rungs if alone else rungs[1:], False, [note]
    return rungs, alone or measuring in rungs, []


def _measuring(case: Case) -> str:
    """The rung in which a Run of the reference measures the rounding of others; "" for none."""
    return next(filter(None, (rung_named(name).measured_by for name in case.rungs)), "")
