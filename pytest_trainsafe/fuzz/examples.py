"""Runs each Point that hypothesis draws for one test once, and explains the failures.

A Point without a verdict (inconclusive, or refused by the program) does not end the test: for
hypothesis it passes, and once all examples have run, the test fails with FuzzInconclusive if no
Point failed.

At the first failure, hypothesis stops to draw.  The failure is explained, and further examples
search for failures that differ from it (`fuzz.failures.further`).  After that no further Point is
run, although hypothesis goes on to shrink the failing example.  From then on, hypothesis gets these
answers.  A drawn Point that has all axis values that the first failure needs is replaced by the
smallest Point that fails so (`settled`).  Another Point that was run earlier keeps its result if it
passed or failed in the same way as the first failure.  All other Points are rejected as examples.
Thus the example that hypothesis saves and prints is the smallest failing Point.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import hypothesis
import pytest
from hypothesis import reject

from pytest_trainsafe.assertions import TrainsafeFailure
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.usage import listing, shown
from pytest_trainsafe.errors import SweepError, TrainsafeWarning, in_one_line
from pytest_trainsafe.fuzz.failure import FlakyProgram, FuzzFailure, FuzzInconclusive
from pytest_trainsafe.fuzz.failures.ending import Ending, text_of
from pytest_trainsafe.fuzz.failures.explain import Explainer
from pytest_trainsafe.fuzz.failures.further import Failures, settled
from pytest_trainsafe.fuzz.runner import Runner, Test
from pytest_trainsafe.fuzz.totals import fuzz_summary
from pytest_trainsafe.printable import printable
from pytest_trainsafe.report.fuzz import (
    fuzz_message,
    inconclusive_message,
    no_verdict_text,
    others_text,
)
from pytest_trainsafe.report.rerun import rerun_with
from pytest_trainsafe.sweep.point_summary import attach_summary

if TYPE_CHECKING:
    from pytest_trainsafe.fuzz.failures.explain import Explained
    from pytest_trainsafe.fuzz.source import PointSource

#: The default of a fuzz test's `max_failures`.
MAX_FAILURES = 3


class Examples:
    """The examples of one execution of a fuzz test."""

    def __init__(
        self,
        item: pytest.Function,
        source: PointSource,
        takes: frozenset[str],
        max_failures: int = MAX_FAILURES,
    ) -> None:
        self._item = item
        self._source = source
        self._max_failures = max_failures
        self.runner = Runner(item, source, takes)
        self._endings: dict[Point, Ending] = {}
        self._first: Explained | None = None
        self._failure: Callable[[], BaseException] | None = None
        self._test: Test = lambda: None

    def run(self, given: Point, test: Test) -> None:
        """Runs the test at the Point `given`.

        `test` is called with those of the keyword arguments `candidate_trace`, `reference_trace`,
        `trainsafe` and `point` that the test function takes.  If the test fails, raises FuzzFailure
        with an explanation, or FlakyProgram if the program is not reproducible.
        """
        __tracebackhide__ = True
        point = self._declared(given)
        if point is None:
            return
        self._test = test
        if self._failure is not None and point not in self._endings:
            reject()
        ending = self._ending(point)
        if ending.end == "skipped" and ending.error is None:
            reject()
        if ending.end != "fails":
            return
        if self._failure is None:
            self._failure = self._explain(point)
        elif self._first is not None and ending.bug != self._first.bug:
            reject()
        # hypothesis takes failures from different lines for different bugs, so only this line
        # raises them.
        raise self._failure() from None

    def publish(self) -> None:
        """Publishes the summary of the examples, and warns if they could not fail."""
        runner, clean = self.runner, self._failure is None
        if self._endings and runner.traced and not runner.compared and clean:
            self._item.warn(
                TrainsafeWarning(
                    f"{self._item.name} is a fuzz test whose examples used no Run, so it could not "
                    "fail; call assert_trainsafe(candidate_trace, reference_trace)"
                )
            )
        for name, count in runner.applied.items():
            if self._endings and not count and clean:
                self._item.warn(
                    TrainsafeWarning(
                        f"{self._item.name}: the relation {shown(name)} applied at none of the "
                        f"{len(self._endings)} points, so it could not fail: "
                        f"{runner.inapplicable.get(name, 'no point was run')}"
                    )
                )
        failing = self._first.interaction.point if self._first is not None else None
        program = self._source.declaration.program.name
        summary = fuzz_summary(self._item.name, program, runner, self._endings, failing)
        if summary is not None and (clean or failing is not None):
            attach_summary(self._item, summary)

    def conclude(self) -> None:
        """Ends a test without a failure.

        Raises FuzzInconclusive if some Points have no verdict, or FlakyProgram if the program is
        not reproducible there, and skips the test if every Point was skipped.
        """
        __tracebackhide__ = True
        open_points = [p for p, e in self._endings.items() if e.end in ("inconclusive", "refused")]
        if open_points:
            cheapest = min(open_points, key=lambda point: point.world_size)
            try:
                self._explainer().require_same(cheapest, self._test)
            except FlakyProgram as flaky:
                raise flaky.with_traceback(None) from None
            case = self._source.space.cell(cheapest).case
            error = self._endings[cheapest].error
            text = inconclusive_message(
                case.program.name,
                self._item.nodeid,
                cheapest,
                self._no_verdict(),
                text_of(error),
                rerun_with(case.settings._replace(sweep=())),
            )
            findings = error.findings if isinstance(error, TrainsafeFailure) else ()
            raise FuzzInconclusive(text, findings, self._no_verdict())
        reasons = {ending.reason for ending in self._endings.values() if ending.end == "skipped"}
        if reasons and all(ending.end == "skipped" for ending in self._endings.values()):
            pytest.skip(printable("; ".join(sorted(reasons))))

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

    def _ending(self, point: Point) -> Ending:
        """How the test ends at a Point.  The test runs at most once at each Point."""
        known = self._endings.get(point)
        if known is None:
            case = self._source.space.cell(point).case
            # The search for the faulty code takes longer than the test itself.
            quick = replace(case, settings=case.settings._replace(localize=0.0))
            known = self._endings[point] = self.runner.judged(quick, self._test)
        return known

    def _explainer(self) -> Explainer:
        return Explainer(self._source.space, self.runner, self._ending)

    def _explain(self, point: Point) -> Callable[[], BaseException]:
        """Returns a function that makes the exception to raise for the failure at a Point.

        It makes a FlakyProgram if the failure is flaky.  Otherwise it makes a FuzzFailure with the
        smallest Point that fails in the same way, the axes that the failure needs, and the other
        failures that further examples find.
        """
        space, explainer = self._source.space, self._explainer()
        try:
            first = explainer.explain(point, len(self._endings), self._test)
        except FlakyProgram as flaky:
            text, line = str(flaky), flaky.line
            return lambda: FlakyProgram(text, line=line)
        failures = Failures(space, self._endings, explainer, first)
        failures.search(self._test, self._max_failures, hypothesis.settings().max_examples)
        self._first = first
        self._source.settled = partial(settled, space, first.interaction)
        found = failures.found
        at_limit = len(found) == self._max_failures > 1
        rows = [
            ("failures", others_text(len(found), failures.further, at_limit)),
            ("flaky", "; ".join(failures.flaky)),
            ("no verdict", self._no_verdict()),
        ]
        others = [partial(self._made, each, []) for each in found[1:]]
        return lambda: self._made(first, rows, [make() for make in others])

    def _made(
        self,
        one: Explained,
        rows: list[tuple[str, str]],
        others: list[FuzzFailure] | None = None,
    ) -> FuzzFailure:
        """The FuzzFailure of one failure; its report ends with those of the `others`."""
        case = self._source.space.cell(one.interaction.point).case
        also = ", ".join(map(str, one.also))
        text = fuzz_message(
            case.program.name,
            self._item.nodeid,
            one.interaction,
            one.examples,
            text_of(one.error),
            rerun_with(case.settings._replace(sweep=())),
            [*rows, ("also", f"the same code fails in another way at {also}" if also else "")],
        )
        findings = one.error.findings if isinstance(one.error, TrainsafeFailure) else ()
        text = "\n\n".join([text, *map(str, others or ())])
        line = f"{one.interaction.point}: {in_one_line(one.error)}"
        return FuzzFailure(text, findings, one.interaction, one.examples, others or (), line)

    def _no_verdict(self) -> str:
        """The Points that are inconclusive or refused, by their reasons."""
        reasons: dict[str, list[Point]] = {}
        for point, ending in self._endings.items():
            if ending.end in ("inconclusive", "refused"):
                reasons.setdefault(ending.reason, []).append(point)
        return no_verdict_text(reasons, len(self._endings))
