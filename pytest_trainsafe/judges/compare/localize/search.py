"""Runs candidate and reference with rewritten tensors between modules, and finds what differs.

`judges.compare.ladder.ladder` calls this after the comparison in one dtype failed.  A search costs
one Run of the candidate, two or three of the reference (cached like every reference), and one more
Run of the candidate for each axis tried.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from msgspec import structs

from pytest_trainsafe.align.calls import renumbered
from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.core.mesh.sweep_axes import parallel_axes
from pytest_trainsafe.core.tensor_id import INITIAL, TensorId
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.comparison import Comparison
from pytest_trainsafe.judges.compare.declarations.adopt import adopt
from pytest_trainsafe.judges.compare.declarations.suggest import MissingLayout
from pytest_trainsafe.judges.compare.explain.common_factor import with_factor
from pytest_trainsafe.judges.compare.fault.clause import Clause
from pytest_trainsafe.judges.compare.fault.located import Located
from pytest_trainsafe.judges.compare.localize.axes import (
    OTHERWISE,
    Shown,
    Tried,
    arguments_at,
    necessary_axis,
    only_axis,
    parallel,
)
from pytest_trainsafe.judges.compare.localize.blame import Fault, Stages, blame
from pytest_trainsafe.judges.compare.localize.budget import (
    TESTS,
    Budget,
    Deadline,
    Family,
    LocatedBefore,
    budget_of,
)
from pytest_trainsafe.judges.compare.localize.code.casts import with_cast
from pytest_trainsafe.judges.compare.localize.code.experts import undeclared_experts
from pytest_trainsafe.judges.compare.localize.code.lines import Place, has_whole_steps_only
from pytest_trainsafe.judges.compare.localize.code.places import Places
from pytest_trainsafe.judges.compare.localize.code.sharper import without_idle
from pytest_trainsafe.judges.compare.localize.description import located
from pytest_trainsafe.judges.compare.localize.gradients import reduced_before_step
from pytest_trainsafe.judges.compare.localize.initial import (
    initial,
    of_attribute,
    whole_steps,
    with_writes,
)
from pytest_trainsafe.judges.compare.localize.scales import scales
from pytest_trainsafe.judges.compare.localize.stages import cut_modules, ends, is_input
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.launch import GroupFailure
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.trace.reader import Trace, TraceError

if TYPE_CHECKING:
    from pytest_trainsafe.core.point import Point
    from pytest_trainsafe.judges.compare.judgement import RungJudgement
    from pytest_trainsafe.runs.execution.run import Run
    from pytest_trainsafe.runs.traces import Traces

#: The kinds of the gradients of parameters.
_GRADIENTS = frozenset({"param_grad", "main_grad", "unclipped_grad"})


def localize_rung(
    candidate: Traces, reference: Traces, rung: RungTraces, failed: RungJudgement
) -> Located | None:
    """Find the code at fault in `rung`, which was judged to fail, as `localize` does.

    If layouts are missing that explain some failures, it is the code that causes the others: a
    module is not to blame for the layout that its output lacks.
    """
    budget = budget_of(candidate.runs.scheduler)
    proposal = failed.advice.proposal
    if failed.rest is None or proposal is None or proposal.rest is None:
        return localize(candidate, reference, rung, failed.comparison, budget)
    declared, rest = proposal.rest[0], failed.rest.comparison
    return localize(candidate, reference, declared, rest, budget, proposal.needs)


def localize(
    candidate: Traces,
    reference: Traces,
    rung: RungTraces,
    failed: Comparison,
    budget: Budget,
    needs: Sequence[MissingLayout] = (),
) -> Located | None:
    """Find the code at fault in `rung`, the traces of one dtype, whose comparison is `failed`.

    Returns None, without a search, if the first failing finding of `failed` names no tensor, unless
    initial parameters are wrong.  After
    a search, the rows of the result say how long the search took, or why it found nothing.
    The search of one test may take `settings.localize` seconds; `budget` limits all searches of the
    process together.  `needs` has the layouts that no annotation declares, with which `rung` and
    `failed` were made.  If an earlier failure that probably has the same cause was localised
    (`family_of`), there is no search: the result has the line that was found then, and names the
    earlier test.  Neither is there one if the search for the earlier failure ran out of time.
    """
    failing = [f for f in failed.findings if f.verdict == "fail"]
    first = failing[0]
    named = next((f.where for f in failing if f.where is not None), None)
    if named is not None and named.step == INITIAL:
        return initial(failed, rung.candidate, rung.reference)
    if first.where is None:
        return None
    case = candidate.case
    places = Places(rung.candidate, case.program, rung.reference)
    if has_whole_steps_only(rung.reference):
        return whole_steps(failed, with_writes(candidate, reference, rung, failed, budget))
    if text := undeclared_experts(rung.candidate, [f.where for f in failing]):
        watch = places.does("watch")
        return Located((("annotate", text),), watch.source, watch.clauses)
    family = family_of(case, rung, first)
    if (known := budget.known(family)) is not None:
        return _as_known(known)
    most = case.settings.localize
    if (seconds := budget.allows(most)) <= 0:
        return _unlocated(candidate, rung, failed, _all_spent(budget, most))
    if (test := budget.late(family, seconds)) is not None:
        return _unlocated(candidate, rung, failed, _late(test, seconds))
    deadline = Deadline(seconds, candidate.runs.held_up)
    why = ""
    try:
        # If the optimizer's gradients agree, it is judged by them: its fault may need their values.
        wrong = any(f.where is not None and f.where.kind in _GRADIENTS for f in failing)
        terms = frozenset(id.path for id in failed.terms)
        found = Search(
            candidate, reference, rung, deadline, wrong, needs, bool(failed.in_step), terms
        ).run()
    except TimeoutError:
        spent = deadline.spent
        limit = "--trainsafe-localize" if seconds == most else "the limit of the whole process"
        why = f"stopped at the time limit after {spent:.1f} s ({limit})"
        budget.ran_out(family, case.nodeid, seconds)
    except GroupFailure as failure:
        reason = str(failure).partition("\n")[0]
        why = f"the program fails when the tensors between its modules are replaced ({reason})"
    except TraceError as error:
        why = str(error).partition("\n")[0]
    if not why and found.faults:
        found = with_cast(found, first, rung, lambda: _watched(candidate, rung, deadline))
    spent = deadline.spent
    budget.take(spent)
    if why:
        return _unlocated(candidate, rung, failed, why)
    if not found.faults:
        return _unlocated(candidate, rung, failed, *(text for _, text in found.rows))
    found = replace(found, rows=(*found.rows, ("localised", f"in {spent:.1f} s")))
    budget.keep(family, case.nodeid, found)
    return found


def _watched(candidate: Traces, rung: RungTraces, deadline: Deadline) -> Trace | None:
    """The candidate's trace with its casts; None if it is not recorded in time."""
    spec = candidate.spec(rung.candidate.manifest.dtype)
    spec = structs.replace(spec, watch_casts=True, record="sketch", rng=False)
    try:
        return deadline.wait(candidate.runs.start(spec)).trace
    except (GroupFailure, TimeoutError):
        return None  # the result stands without it


def wrong_line(candidate: Traces, rung: RungTraces, failed: RungJudgement) -> Located | None:
    """Find, without a search, the source line that produces the first wrong tensor.

    If declarations explain the failure, it is the line of the declaration.  None if no line is
    known, as for a tensor that a module produces.
    """
    if failed.explained:
        place = _declared_at(candidate, rung, failed)
        found = Located((), place.source, place.clauses)
    else:
        found = _unlocated(candidate, rung, failed.comparison)
    return found if found.source else None


def _declared_at(candidate: Traces, rung: RungTraces, failed: RungJudgement) -> Place:
    """The line of the declarations that explain a failure; NOWHERE if it is not known.

    It is that of the entry in a file, or else the line that passes the annotations, or, for a
    layout that a parameter's attribute declares, the class of the module that has the parameter.
    """
    entry = ""
    if failed.advice.misdeclared is not None:
        first = next(f.where for f in failed.comparison.findings if f.verdict == "fail")
        marked = None if first is None else of_attribute(first, rung.candidate)
        if marked is not None:
            return marked
        entry = failed.advice.misdeclared.first
    return Places(rung.candidate, candidate.case.program, rung.reference).of_annotations(entry)


def _unlocated(candidate: Traces, rung: RungTraces, failed: Comparison, *why: str) -> Located:
    """The result when nothing was localised, with the reasons `why`.

    If no module produces the first wrong tensor, the result has the line that produces it.
    """
    first = next(f for f in failed.findings if f.verdict == "fail")
    rows = tuple(("" if number else "not localised", text) for number, text in enumerate(why))
    if first.where is None:
        return Located(rows)
    places = Places(rung.candidate, candidate.case.program, rung.reference)
    place = places.of_tensor(first.where, failed)
    return Located(rows, place.source, place.clauses)


def family_of(case: Case, rung: RungTraces, first: Finding) -> Family:
    """The key that failures share if they probably have one cause.

    It consists of the program with its arguments, the dtype, the axes that are not parallel, and
    facts about `first`, the first failing finding: the kind and path of its tensor, its check, and
    the name and axis of the pattern that was recognised in the wrong values.
    """
    assert first.where is not None
    where, pattern = first.where, first.pattern
    program = case.program.path, case.program.file
    arguments = json.dumps([dict(case.arguments), dict(case.candidate_arguments)], sort_keys=True)
    how = parallel_axes(case.point.mesh)
    parameters = tuple((axis, value) for axis, value in case.point if axis not in how)
    return (
        program,
        arguments,
        parameters,
        rung.candidate.manifest.dtype,
        (where.kind, where.path),
        (first.check, pattern.name if pattern else "", pattern.axis if pattern else ""),
    )


def _as_known(known: LocatedBefore) -> Located:
    """The result for a failure that probably has the cause of `known`, an earlier failure.

    It names the test of the earlier failure, and has the line that was found for it.
    """
    text = next(text for label, text in known.located.rows if label == "faulty")
    test = known.nodeid or "an earlier test"
    note = f"not repeated: the failure of {test} starts at the same tensor; found there: {text}"
    source, clauses = known.located.source, known.located.clauses
    same = (*clauses, Clause("as in that test")) if source else ()
    # With the faults, so that the line to look at first is the same.
    return Located((("localised", note),), source, same, known.located.faults)


def _late(nodeid: str, seconds: float) -> str:
    return (
        f"not searched: the failure of {nodeid or 'an earlier test'} starts at the same tensor, "
        f"and its search stopped at the time limit of {seconds:g} s (--trainsafe-localize)"
    )


def _all_spent(budget: Budget, most: float) -> str:
    return (
        f"localisation took {budget.spent:.0f} s in this process, and the limit is {TESTS} times "
        f"the {most:g} s that one test may take (--trainsafe-localize)"
    )


def _not_located(why: str) -> Located:
    return Located((("not localised", why),))


@dataclass
class Search:
    """A search for the code that causes the differences in `rung`, until the `deadline`.

    `rung` has the traces of candidate and reference that were compared in one dtype.  With
    `main_gradients`, the optimizer gets generated gradients, and is judged alone.  `needs` has
    layouts that no annotation declares: ranks cannot cut such outputs to replace them, so these are
    left as they are, and compared with these layouts.  `in_step` is whether the optimizer's step
    reduces some gradients; generated gradients do not show if it does.  `terms` has the paths of
    gradients of which ranks hold terms: they are not replaced, and not compared.  Raises
    TimeoutError, GroupFailure if the program fails with rewritten tensors, and TraceError for
    traces without values.
    """

    candidate: Traces
    reference: Traces
    rung: RungTraces
    deadline: Deadline
    main_gradients: bool = True
    needs: Sequence[MissingLayout] = ()
    in_step: bool = True
    terms: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self.dtype = self.rung.candidate.manifest.dtype
        whole = self.reference.in_full().at(self.dtype)
        found = scales(whole, self.rung.candidate, self.main_gradients)
        lacking = {
            f"{kind} {need.name}.output" if need.name else f"{kind} output"
            for need in self.needs
            for kind in ("activation", "activation_grad")
            if need.section == "modules"
        }
        held = {f"activation_grad {path} " for path in self.terms}
        self.rewrite = {
            key: scale for key, scale in found.items() if not key.startswith((*lacking, *held))
        }
        self.rewrites = tuple(sorted(self.rewrite.items()))

    def run(self) -> Located:
        """Search, and return the report's rows."""
        if all(key.startswith("main_grad ") for key in self.rewrite):
            return _not_located("no activations were recorded that can be replaced for the search")
        rung = self.rewritten()
        comparison, faults = self.judge(rung)
        if not faults:
            return _not_located(
                "nothing differs once the tensors between modules are replaced by the same values "
                "in both Runs: the fault needs the values of the training, or is in state that "
                "modules share"
            )
        program = self.candidate.case.program
        tried = self.axis(faults, rung)
        found = located(faults, comparison, rung, program, tried.text)
        clauses = without_idle(rung.candidate, found.clauses, tried.stays)
        found = replace(found, clauses=clauses, axis=tried.axis)
        return replace(found, not_axes=tried.stays, needs=tried.needs)

    def rewritten(self) -> RungTraces:
        """A new rung: traces of Runs in which the tensors between modules are rewritten."""
        runs = [
            self.candidate.rewritten(self.dtype, self.rewrites),
            self.reference.rewritten(self.dtype, self.rewrites),
            self.reference.rewritten(self.dtype, self.rewrites, noise=True),
        ]
        if self.rung.shadow is not None:
            runs.append(self.reference.rewritten(self.rung.shadow.manifest.dtype, self.rewrites))
        candidate, reference, perturbed, *shadow = map(self._wait, runs)
        return RungTraces(
            dtype=self.rung.dtype,
            candidate=renumbered(candidate, reference),
            reference=reference,
            perturbed=perturbed,
            shadow=shadow[0] if shadow else None,
        )

    def judge(self, rung: RungTraces) -> tuple[Comparison, list[Fault]]:
        """Compare the traces in `rung`, recorded with the tensors between modules rewritten.

        Returns the comparison, and the faults that explain the differences.
        """
        cut = cut_modules(rung.candidate) | cut_modules(rung.reference)
        stages = Stages(rung.candidate, frozenset(cut))
        if self.needs:
            rung = replace(rung, candidate=adopt(rung.candidate, self.needs))
        rung = _with_ends(rung, cut)
        candidate = rung.candidate if self.in_step else reduced_before_step(rung.candidate)
        traces = (_outputs(trace, self.terms) for trace in (candidate, rung.reference))
        outputs = replace(rung, candidate=next(traces), reference=next(traces))
        comparison = with_factor(outputs, compare(outputs, ()))
        return comparison, blame(rung, comparison, self.rewrite, stages)

    def axis(self, faults: Sequence[Fault], rung: RungTraces) -> Tried:
        """The axis without which the first fault does not occur.

        The text says so if the time did not suffice to try every axis.
        """
        case = self.candidate.case
        late = False

        def persists(point: Point) -> Shown:
            """Whether the first of `faults` occurs at a Point."""
            nonlocal late
            if self.deadline.passed:
                late = True
                return None
            at = point, arguments_at(case, point)
            run = self.candidate.rewritten(self.dtype, self.rewrites, at=at)
            try:
                trace = self._wait(run)
            except TimeoutError:
                late = True
                return None
            except (GroupFailure, TraceError):
                return None
            trace = renumbered(trace, rung.reference)
            _, found = self.judge(replace(rung, candidate=trace))
            same = (faults[0].phase, faults[0].target) in {(f.phase, f.target) for f in found}
            return OTHERWISE if found and not same else same

        axes = parallel(case.point, parallel_axes(case.point.mesh))
        if only := only_axis(case):
            return Tried(axes[0], only)
        tried = necessary_axis(case, axes, persists)
        if late:
            seconds = self.deadline.seconds
            stopped = f"stopped at the time limit after {seconds:.0f} s (--trainsafe-localize)"
            tried = replace(tried, text=f"{tried.text}; {stopped}" if tried.text else stopped)
        return tried

    def _wait(self, future: Future[Run]) -> Trace:
        return self.deadline.wait(future).trace


def _with_ends(rung: RungTraces, cut: set[str]) -> RungTraces:
    """A copy of `rung`, the traces in one dtype, without what pipeline stages pass to each other.

    `cut` has the modules that are cut into stages.  Of the inputs and outputs of such a module, the
    copy keeps only the inputs of the first stage and the outputs of the last stage.
    """
    measures = [trace for trace in (rung.perturbed, rung.shadow) if trace is not None]
    candidate, reference, *folded = ends(cut, rung.candidate, rung.reference, *measures)
    others = iter(folded)
    return replace(
        rung,
        candidate=candidate,
        reference=reference,
        perturbed=next(others) if rung.perturbed is not None else None,
        shadow=next(others) if rung.shadow is not None else None,
    )


def _outputs(trace: Trace, terms: Collection[str]) -> Trace:
    """A copy of a trace without modules' inputs, which the compare judge does not support.

    It lacks the gradients of the activations `terms`, too.
    """

    def kept(id: TensorId) -> bool:
        return not is_input(id) and not (id.kind == "activation_grad" and id.path in terms)

    ranks = [
        replace(rank, tensors={id: e for id, e in rank.tensors.items() if kept(id)})
        for rank in trace.ranks
    ]
    return trace.with_ranks(ranks)
