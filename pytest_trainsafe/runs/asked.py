"""The Runs that one test asks for in one role.

Judges ask here, through `Traces`; the session launches, shares and caches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_trainsafe.sweep.point_summary import PointSummary
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.run_spec import RunSpec

if TYPE_CHECKING:
    from pytest_trainsafe.runs.session import Session


@dataclass(frozen=True, slots=True)
class Run:
    """A finished Run: its Trace, and seconds by stage (launch, train).

    `filed` is the key under which the Run was looked for in the cache, "" for none; `reused`
    says that it was there.
    """

    trace: Trace
    seconds: Mapping[str, float]
    filed: str = ""
    reused: bool = False


class AskedRuns:
    """What a test asked for in one role, and what is known of it.

    `specs` has every Run that was asked for.  `reused` says by cache key whether a Run that is
    cached was there already.  `waited` says whether the test has waited for any of them.
    `publish` is given the Point's summary once it is judged; None for a test without one.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.specs: set[RunSpec] = set()
        self.reused: dict[str, bool] = {}
        self.waited = False
        self.publish: Callable[[PointSummary], None] | None = None
        self._seconds: dict[RunSpec, Mapping[str, float]] = {}

    def start(self, spec: RunSpec) -> Future[Run]:
        """Have a Run made, unless it is there or under way."""
        self.specs.add(spec)
        return self.session.run(spec)

    def get(self, spec: RunSpec, *, timed: bool = False) -> Run:
        """A Run, once it has finished; its seconds count if it is `timed`.

        Raises GroupFailure when its ranks did not finish.
        """
        self.waited = True
        run = self.start(spec).result()
        if run.filed:
            self.reused[run.filed] = run.reused
        if timed:
            self._seconds[spec] = run.seconds
        return run

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds by stage of the Runs that are timed, each Run's once."""
        total: dict[str, float] = {}
        for each in self._seconds.values():
            for stage, spent in each.items():
                total[stage] = total.get(stage, 0.0) + spent
        return total

    def look_ahead(self) -> None:
        """Let the session launch the next test's Runs: all of this test's are launched."""
        self.session.look_ahead()

    @property
    def notes(self) -> dict[str, None]:
        """What the terminal's summary says once, for all tests of the process."""
        return self.session.notes
