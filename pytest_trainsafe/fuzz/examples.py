"""Runs each Point that hypothesis draws for one test once, and explains the first failure.

Once the first failure is explained, no further Point is run, although hypothesis goes on to shrink
the failing example.  From then on, hypothesis gets these answers.  A drawn Point that has all axis
values that the failure needs is replaced by the smallest failing Point (`settled`).  Another Point
that was run earlier keeps its result if it passed or failed in the same way as the first failure.
All other Points are rejected as examples.  Thus the example that hypothesis saves and prints is the
smallest failing Point.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import reject

from pytest_trainsafe.assertions import TrainsafeFailure, assert_same_by
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.usage import listing, shown
from pytest_trainsafe.errors import RelationError, SweepError, TrainsafeWarning
from pytest_trainsafe.fixtures.core import get_session
from pytest_trainsafe.fuzz.failure import FlakyProgram, FuzzFailure
from pytest_trainsafe.fuzz.flaky import cause_text, difference_text, repeated
from pytest_trainsafe.launch import GroupFailure
from pytest_trainsafe.report.interaction import flaky_message, fuzz_message
from pytest_trainsafe.report.rerun import rerun_options
from pytest_trainsafe.sweep.point_summary import PointSummary, attach_summary
from pytest_trainsafe.sweep.search.minimise import Result, minimise

if TYPE_CHECKING:
    from pytest_trainsafe.fuzz.source import PointSource
    from pytest_trainsafe.runs.traces import Traces
    from pytest_trainsafe.sweep.case import Case
    from pytest_trainsafe.sweep.search.interaction import Interaction
    from pytest_trainsafe.sweep.search.space import Space

#: The parameters of a test function that each example gives a value.
GIVEN = ("candidate_trace", "reference_trace", "trainsafe", "point")
_TRACES = frozenset({"candidate_trace", "reference_trace"})


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a test ended at one Point: its error (None if it passed), and the kind of failure."""

    error: BaseException | None = None
    kind: str = ""


class Examples:
    """The examples of one execution of a fuzz test."""

    def __init__(self, item: pytest.Function, source: PointSource, takes: frozenset[str]) -> None:
        self._item = item
        self._source = source
        self._takes = takes
        self._traced = bool(takes & _TRACES or source.relations)
        #: For each relation: at how many Points it applied, and why it did not at some other Point.
        self._applied = {relation.name: 0 for relation in source.relations}
        self._inapplicable: dict[str, str] = {}
        self._outcomes: dict[Point, Outcome] = {}
        self._summaries: list[PointSummary] = []
        #: The reasons why this machine cannot run some of the Points.
        self.unavailable: dict[str, None] = {}
        self._compared = False
        self._kind = ""
        self._failure: Callable[[], BaseException] | None = None

    def run(self, given: Point, test: Callable[..., object]) -> None:
        """Runs the test at the Point `given`.

        `test` is called with those of the keyword arguments `candidate_trace`, `reference_trace`,
        `trainsafe` and `point` that the test function takes.  If the test fails, raises FuzzFailure
        with an explanation, or FlakyProgram if the program is not reproducible.
        """
        __tracebackhide__ = True
        point = self._declared(given)
        if point is None:
            return
        if self._failure is not None and point not in self._outcomes:
            reject()
        outcome = self._outcome(point, test)
        if outcome.error is None:
            return
        if self._failure is None:
            self._kind = outcome.kind
            self._failure = self._explain(point, outcome, test)
        elif outcome.kind != self._kind:
            reject()
        # hypothesis takes failures from different lines for different bugs, so only this line
        # raises them.
        raise self._failure() from None

    def finish(self) -> None:
        """Publishes the summary of the examples, and warns if none compared anything."""
        idle = self._traced and not self._compared
        if self._outcomes and idle and self._failure is None:
            self._item.warn(
                TrainsafeWarning(
                    f"{self._item.name} is a fuzz test whose examples used no Run, so it could not "
                    "fail; call assert_trainsafe(candidate_trace, reference_trace)"
                )
            )
        for name, count in self._applied.items():
            if self._outcomes and not count and self._failure is None:
                self._item.warn(
                    TrainsafeWarning(
                        f"{self._item.name}: the relation {shown(name)} applied at none of the "
                        f"{len(self._outcomes)} points, so it could not fail: "
                        f"{self._inapplicable.get(name, 'no point was run')}"
                    )
                )
        if self._summaries:
            attach_summary(self._item, self._summary())

    def _declared(self, given: Point) -> Point | None:
        """The given Point, completed to one in this test's space; None if options exclude it.

        The Point of an `@example` may lack axes; each of these takes its cheapest value.  Raises
        SweepError if the test does not declare an axis or a value of the given Point, or if the
        completed Point is invalid.
        """
        space = self._source.space
        named = dict(given)
        for axis, value in named.items():
            values = space.values.get(axis)
            if values is None:
                raise SweepError(
                    f"@example names the axis {axis!r}, which the test does not declare; its axes: "
                    f"{listing(space.values)}"
                )
            if value not in values:
                if self._source.narrowed:
                    return None
                raise SweepError(
                    f"@example has {axis}={value}, and the test declares {axis} as "
                    f"{listing(map(str, values))}; add the value to the axis"
                )
        point = space.point({**{n: values[0] for n, values in space.values.items()}, **named})
        reason = space.cell(point).invalid
        if reason is None:
            return point
        if self._source.narrowed:
            return None
        raise SweepError(f"@example has an invalid point, {point}: {reason}")

    def _outcome(self, point: Point, test: Callable[..., object]) -> Outcome:
        known = self._outcomes.get(point)
        if known is None:
            known = self._outcomes[point] = self._judged(self._quick(point), test)
        return known

    def _quick(self, point: Point) -> Case:
        """The Case of a Point, with the search for the faulty code turned off."""
        case = self._source.space.cell(point).case
        return replace(case, settings=replace(case.settings, localize=0.0))

    def _judged(self, case: Case, test: Callable[..., object]) -> Outcome:
        """Runs the test at one Case."""
        unavailable = case.program.traits.unavailable
        reason = unavailable(case) if unavailable is not None else ""
        if reason:
            self.unavailable[reason] = None
            reject()
        with self._traces(case) as traces:
            return self._tested(case, test, traces)

    def _tested(
        self, case: Case, test: Callable[..., object], traces: Mapping[str, Traces]
    ) -> Outcome:
        """Calls the test with the Traces of a Case."""
        given: dict[str, Any] = {"trainsafe": case, "point": case.point, **traces}
        try:
            test(**{name: given[name] for name in self._takes})
            self._relate(traces)
        except pytest.xfail.Exception:
            raise
        except (Exception, pytest.fail.Exception) as error:
            return Outcome(error.with_traceback(None), kind_of(error))
        return Outcome()

    def _relate(self, traces: Mapping[str, Traces]) -> None:
        """Asserts the relations that apply at the Point of these Traces."""
        for relation in self._source.relations:
            try:
                assert_same_by(relation, traces["candidate_trace"])
            except RelationError as error:
                self._inapplicable[relation.name] = str(error)
            else:
                self._applied[relation.name] += 1

    @contextlib.contextmanager
    def _traces(self, case: Case) -> Iterator[dict[str, Traces]]:
        """Yields the Traces of a Case by their parameter names; {} if the test needs none."""
        if not self._traced:
            yield {}
            return
        session = get_session(self._item._request)
        session.next = None
        reference = session.reference(case)
        candidate = session.candidate(case)
        candidate.runs.publish = self._summaries.append
        try:
            yield {"candidate_trace": candidate, "reference_trace": reference}
        finally:
            self._compared |= candidate.runs.waited or reference.runs.waited
            if not case.settings.keep_traces:
                session.discard(candidate)

    def _explain(
        self, point: Point, outcome: Outcome, test: Callable[..., object]
    ) -> Callable[[], BaseException]:
        """Returns a function that makes the exception to raise for a failure.

        It makes a FlakyProgram if the failure is flaky.  Otherwise it makes a FuzzFailure with the
        smallest Point that fails in the same way, and the axes that the failure needs.
        """
        examples = len(self._outcomes)
        flaky = self._why_flaky(point, outcome, test)
        case = self._source.space.cell(point).case
        if flaky:
            text = flaky_message(case.program.name, point, *flaky, text_of(outcome.error))
            return lambda: FlakyProgram(text)

        def result(tried: Point) -> Result:
            found = self._outcome(tried, test)
            if found.error is None:
                return "passes"
            return "fails" if found.kind == self._kind else "differs"

        interaction = minimise(self._source.space, point, result)
        self._source.settled = partial(settled, self._source.space, interaction)
        smallest = self._source.space.cell(interaction.point).case
        error = self._outcomes[interaction.point].error
        if smallest.settings.localize:
            located = self._judged(smallest, test)
            error = located.error if located.kind == self._kind else error
        text = fuzz_message(
            smallest.program.name,
            self._item.nodeid,
            interaction,
            examples,
            text_of(error),
            rerun_options(replace(smallest.settings, sweep=())),
        )
        findings = error.findings if isinstance(error, TrainsafeFailure) else ()
        return lambda: FuzzFailure(text, findings, interaction, examples)

    def _why_flaky(
        self, point: Point, outcome: Outcome, test: Callable[..., object]
    ) -> tuple[str, str] | None:
        """Why a failure is flaky, and what the determinism judge says; None if it is not flaky."""
        case, why, cause = self._quick(point), "", ""
        with self._traces(case) as traces:
            candidate = traces.get("candidate_trace")
            compared = isinstance(outcome.error, TrainsafeFailure)
            # If nothing was compared, the reference may be what failed: it is repeated too.
            again = ("candidate_trace",) if compared else tuple(traces)
            second = {name: repeated(t) if name in again else t for name, t in traces.items()}
            ended = self._tested(case, test, second)
            if ended.kind != outcome.kind:
                ends = "passes" if ended.error is None else "fails in another way"
                why = f"run again with the same values, the test {ends}"
            elif candidate and isinstance(outcome.error, TrainsafeFailure):
                why = difference_text(candidate, outcome.error.findings)
            if why and candidate:
                whole = self._source.space.cell(point).case
                cause = cause_text(replace(candidate, case=whole))
        return (why, cause) if why else None

    def _summary(self) -> PointSummary:
        """The summary of the example with the worst verdict, extended by totals of all examples.

        The seconds are the sums over all examples, and notes tell how many Points were run.
        """
        order = {"fail": 0, "inconclusive": 1}
        worst = min(self._summaries, key=lambda each: order.get(each["verdict"], 2))
        seconds: dict[str, float] = {}
        references: dict[str, bool] = {}
        for each in self._summaries:
            for stage, spent in each.get("seconds", {}).items():
                seconds[stage] = seconds.get(stage, 0.0) + spent
            for key, reused in each.get("references", {}).items():
                references.setdefault(key, reused)
        passed = sum(outcome.error is None for outcome in self._outcomes.values())
        notes = [*worst.get("notes", [])]
        notes.append(f"{self._item.name}: {len(self._outcomes)} points run, {passed} passed")
        notes += [
            f"{self._item.name}: the relation {shown(name)} held at {count} points"
            for name, count in self._applied.items()
        ]
        notes += [f"{self._item.name}: points not run: {reason}" for reason in self.unavailable]
        return {**worst, "seconds": seconds, "references": references, "notes": notes}


def settled(space: Space, interaction: Interaction, point: Point) -> Point:
    """The smallest failing Point if `point` has every axis value that the failure needs.

    Otherwise `point` itself.
    """
    own = dict(point)
    for effect in interaction.needs:
        cost = space.values[effect.axis].index
        value = own[effect.axis]
        if value in effect.passes or cost(value) < min(map(cost, effect.fails)):
            return point
    return interaction.point


def kind_of(error: BaseException) -> str:
    """The kind of a failure.  A smaller Point counts as failing only if the kind is the same."""
    if isinstance(error, TrainsafeFailure):
        verdicts = {finding.verdict for finding in error.findings}
        return f"{type(error).__name__}: {'fail' if 'fail' in verdicts else 'inconclusive'}"
    from pytest_trainsafe.launch.failure import raised

    if isinstance(error, GroupFailure):
        return " ".join(("GroupFailure:", *sorted(map(str, raised(error.result)))))
    return type(error).__name__


def text_of(error: Any) -> str:
    """The report of an error, or its class and message."""
    if isinstance(error, (TrainsafeFailure, GroupFailure)):
        return str(error)
    return "".join(traceback.format_exception_only(error)).strip()
