"""Runs a fuzz test at one Case, with the Traces of its candidate and its reference."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

from pytest_trainsafe.assertions import assert_same_by
from pytest_trainsafe.errors import RelationError
from pytest_trainsafe.fixtures.core import get_session
from pytest_trainsafe.fuzz.failures.ending import PASSED, Ending, ending_of

if TYPE_CHECKING:
    from pytest_trainsafe.fuzz.source import PointSource
    from pytest_trainsafe.runs.traces import Traces
    from pytest_trainsafe.sweep.case import Case
    from pytest_trainsafe.sweep.point_summary import PointSummary

#: The parameters of a test function that each example gives a value.
GIVEN = ("candidate_trace", "reference_trace", "trainsafe", "point")
_TRACES = frozenset({"candidate_trace", "reference_trace"})

Test = Callable[..., object]


class Runner:
    """Runs one fuzz test at any of its Points, and keeps what it saw there.

    `summaries` has a summary for each judged Point, in the order in which they were judged.
    `applied` counts for each relation the Points at which it was judged, and `inapplicable` has the
    reason of some Point at which it was not.  `unavailable` has the reasons why this machine cannot
    run some of the Points.  `compared` is whether any Run was waited for.
    """

    def __init__(self, item: pytest.Function, source: PointSource, takes: frozenset[str]) -> None:
        self._item = item
        self._source = source
        self._takes = takes
        self.traced = bool(takes & _TRACES or source.relations)
        self.summaries: list[PointSummary] = []
        self.applied = {relation.name: 0 for relation in source.relations}
        self.inapplicable: dict[str, str] = {}
        self.unavailable: dict[str, None] = {}
        self.compared = False

    def judged(self, case: Case, test: Test) -> Ending:
        """Runs the test at one Case."""
        unavailable = case.program.traits.unavailable
        reason = unavailable(case) if unavailable is not None else ""
        if reason:
            self.unavailable[reason] = None
            return Ending("skipped", reason=reason)
        with self.traces(case) as traces:
            return self.tested(case, test, traces)

    def tested(self, case: Case, test: Test, traces: Mapping[str, Traces]) -> Ending:
        """Calls the test with the Traces of a Case."""
        given: dict[str, Any] = {"trainsafe": case, "point": case.point, **traces}
        try:
            test(**{name: given[name] for name in self._takes})
            self._relate(traces)
        except pytest.xfail.Exception:
            raise
        except (Exception, pytest.fail.Exception, pytest.skip.Exception) as error:
            return ending_of(error, case.program.traits.refusals)
        return PASSED

    def _relate(self, traces: Mapping[str, Traces]) -> None:
        """Asserts the relations that apply at the Point of these Traces."""
        for relation in self._source.relations:
            try:
                assert_same_by(relation, traces["candidate_trace"])
            except RelationError as error:
                self.inapplicable[relation.name] = str(error)
            else:
                self.applied[relation.name] += 1

    @contextlib.contextmanager
    def traces(self, case: Case) -> Iterator[dict[str, Traces]]:
        """Yields the Traces of a Case by their parameter names; {} if the test needs none."""
        if not self.traced:
            yield {}
            return
        session = get_session(self._item._request)
        session.next = None
        reference = session.reference(case)
        candidate = session.candidate(case)
        candidate.runs.publish = self.summaries.append
        try:
            yield {"candidate_trace": candidate, "reference_trace": reference}
        finally:
            self.compared |= candidate.runs.waited or reference.runs.waited
            if not case.settings.keep_traces:
                session.discard(candidate)
