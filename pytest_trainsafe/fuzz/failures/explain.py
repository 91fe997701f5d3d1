"""Explains one failure of a fuzz test: the smallest Point that fails so, and the axes it needs.

The claims of the explanation rest on single executions.  The Points that decide them, the smallest
failing Point and for each needed axis a Point that passes, are therefore executed REPEATS more
times; if any of these executions ends in another way, the program is flaky and nothing is claimed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_trainsafe.assertions import TrainsafeFailure
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.fuzz.failure import FlakyProgram
from pytest_trainsafe.fuzz.failures.ending import Ending, text_of
from pytest_trainsafe.fuzz.failures.flaky import cause_text, difference_text, repeated
from pytest_trainsafe.report.fuzz import flaky_message
from pytest_trainsafe.sweep.search.minimise import Result, minimise

if TYPE_CHECKING:
    from pytest_trainsafe.fuzz.runner import Runner, Test
    from pytest_trainsafe.sweep.case import Case
    from pytest_trainsafe.sweep.point_summary import PlaceSummary
    from pytest_trainsafe.sweep.search.interaction import Interaction
    from pytest_trainsafe.sweep.search.space import Space

#: How often the Points that decide an explanation are executed again.
REPEATS = 3


@dataclass(frozen=True, slots=True)
class Explained:
    """A failure, reduced: `error` is that of the smallest failing Point.

    `bug` tells failures apart (see `fuzz.failures.ending`), and `place` is the faulty code, None if
    it was not located.  `examples` is the number of Points that had been run when the failure
    occurred.
    `also` has Points at which another first tensor is wrong, by the same code.
    """

    bug: str
    interaction: Interaction
    error: BaseException
    examples: int
    place: PlaceSummary | None = None
    also: tuple[Point, ...] = ()


class Explainer:
    """Explains failures of one test.

    `ending` runs the test at a Point, or returns how it ended there before.
    """

    def __init__(self, space: Space, runner: Runner, ending: Callable[[Point], Ending]) -> None:
        self._space = space
        self._runner = runner
        self.ending = ending

    def explain(self, point: Point, examples: int, test: Test) -> Explained:
        """Explains the failure at a Point.  Raises FlakyProgram if it does not repeat."""
        first = self.ending(point)
        assert first.error is not None, point
        self.require_same(point, test)

        def result(tried: Point) -> Result:
            found = self.ending(tried)
            if found.end == "passes":
                return "passes"
            return "fails" if found.bug == first.bug else "differs"

        interaction = minimise(self._space, point, result)
        for effect in (None, *interaction.needs):
            decisive = interaction.point if effect is None else effect.passed_at
            assert decisive is not None, effect
            self._require_steady(decisive, test)
        error, place = self.ending(interaction.point).error, None
        smallest = self._space.cell(interaction.point).case
        if smallest.settings.localize:
            known = len(self._runner.summaries)
            located = self._runner.judged(smallest, test)
            if located.bug == first.bug:
                error = located.error
                found = [s.get("look_at") for s in self._runner.summaries[known:]]
                place = found[-1] if found else None
        assert error is not None, interaction
        return Explained(first.bug, interaction, error, examples, place)

    def quick(self, point: Point) -> Case:
        """The Case of a Point, with the search for the faulty code turned off."""
        case = self._space.cell(point).case
        return replace(case, settings=case.settings._replace(localize=0.0))

    def require_same(self, point: Point, test: Test) -> None:
        """Raises FlakyProgram if the failing tensor differs between two executions of its Run."""
        first, case = self.ending(point), self.quick(point)
        with self._runner.traces(case) as traces:
            candidate = traces.get("candidate_trace")
            compared = isinstance(first.error, TrainsafeFailure)
            # If nothing was compared, the reference may be what failed: it is repeated too.
            again = ("candidate_trace",) if compared else tuple(traces)
            second = {name: repeated(t, 1) if name in again else t for name, t in traces.items()}
            ended = self._runner.tested(case, test, second)
            why = ""
            if not _alike(ended, first):
                why = f"run again with the same values, the test {_ends(ended)}"
            elif candidate is not None and isinstance(first.error, TrainsafeFailure):
                why = difference_text(candidate, first.error.findings)
            if why:
                raise self._flaky(point, why, first, test)

    def _require_steady(self, point: Point, test: Test) -> None:
        """Raises FlakyProgram if executions of the test at a Point do not all end alike."""
        first, case = self.ending(point), self.quick(point)
        ends = [first]
        with self._runner.traces(case) as traces:
            candidate = traces.get("candidate_trace")
            again = [repeated(candidate, n) for n in range(1, REPEATS + 1)] if candidate else []
            for each in again:
                each.prefetch(case.rungs[0])
            for number in range(REPEATS):
                own = {**traces, "candidate_trace": again[number]} if again else traces
                ends.append(self._runner.tested(case, test, own))
        if not all(_alike(each, first) for each in ends):
            passed = sum(each.end == "passes" for each in ends)
            failed = sum(each.end == "fails" for each in ends)
            other = len(ends) - passed - failed
            rest = f", {other} without a verdict" if other else ""
            why = f"of {len(ends)} executions here, {passed} passed and {failed} failed{rest}"
            raise self._flaky(point, why, next(e for e in ends if e.error is not None), test)

    def _flaky(self, point: Point, why: str, failed: Ending, test: Test) -> FlakyProgram:
        case = self._space.cell(point).case
        cause = ""
        with self._runner.traces(self.quick(point)) as traces:
            candidate = traces.get("candidate_trace")
            if candidate is not None:
                cause = cause_text(replace(candidate, case=case))
        text = text_of(failed.error)
        report = flaky_message(case.program.name, point, why, cause, text)
        return FlakyProgram(report, line=f"flaky at {point}: {why}")


def _alike(one: Ending, first: Ending) -> bool:
    """Whether two executions of the same Run ended in the same way.

    Where tensors were compared, only the verdict counts: which tensor is the first wrong one may
    depend on rounding that differs from execution to execution.
    """
    if isinstance(first.error, TrainsafeFailure):
        return one.end == first.end
    return (one.end, one.bug) == (first.end, first.bug)


def _ends(ended: Ending) -> str:
    return "passes" if ended.end == "passes" else "ends in another way"
