"""The Runs that one test requests for its reference or for its candidate.

Judges request Runs here, through `Traces`; the scheduler launches, shares and caches them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path

from pytest_trainsafe.launch import GroupFailure
from pytest_trainsafe.launch.failure import hung
from pytest_trainsafe.runs.execution.run import Run
from pytest_trainsafe.runs.execution.scheduler import Scheduler
from pytest_trainsafe.sweep.namesakes import refuse_other_file_in_ranks
from pytest_trainsafe.sweep.point_summary import PointSummary
from pytest_trainsafe.trace.run_spec import RunSpec


class RequestedRuns:
    """The Runs that a test requested for its reference or for its candidate, and their status.

    `specs` has the spec of every requested Run.  `reused` says for each cache key whether the
    cache already had the Run.  `waited` says whether the test has waited for any Run, and `last` is
    the last timed Run that it got.
    `publish` is called with the Point's summary once the Point is judged; it is None if
    nothing takes the summary.  `look_ahead` launches the next test's Runs; judges call it when all
    Runs of this test are launched.
    """

    def __init__(self, scheduler: Scheduler, look_ahead: Callable[[], None]) -> None:
        self.scheduler = scheduler
        self.look_ahead = look_ahead
        self.specs: set[RunSpec] = set()
        self.reused: dict[str, bool] = {}
        self.waited = False
        self.last: Run | None = None
        self.publish: Callable[[PointSummary], None] | None = None
        self._seconds: dict[RunSpec, Mapping[str, float]] = {}

    def start(self, spec: RunSpec) -> Future[Run]:
        """Launches a Run unless it has finished or is in progress; returns a Future of it.

        The Runs that it follows are launched before it.  Raises InvalidProgramError if the ranks
        would import another file than the tests have.
        """
        __tracebackhide__ = True
        if spec not in self.specs and not spec.script:
            refuse_other_file_in_ranks(spec.program)
        for earlier in spec.follows:
            self.start(earlier)
        self.specs.add(spec)
        return self.scheduler.run(spec)

    def give_up_if_hung(self, spec: RunSpec, others: Sequence[RunSpec]) -> None:
        """Stops the Runs of `others` in progress if the Run of `spec`, once launched, hangs."""

        def ended(run: Future[Run]) -> None:
            error = None if run.cancelled() else run.exception()
            if isinstance(error, GroupFailure) and hung(error.result):
                self.scheduler.give_up_unfinished(others)

        if spec in self.specs:
            self.scheduler.run(spec).add_done_callback(ended)

    def get(self, spec: RunSpec, *, timed: bool = False) -> Run:
        """Waits for a Run and returns it.

        With `timed`, the property `seconds` then includes the seconds that the Run took.  Raises
        GroupFailure if the Run's ranks did not finish.
        """
        __tracebackhide__ = True
        self.waited = True
        try:
            run = self.start(spec).result()
        except GroupFailure as failure:
            # Its text has the ranks' tracebacks; the frames of the waiting code add nothing.
            raise failure.with_traceback(None) from None
        self.scheduler.finished.add((spec.program, spec.file, spec.dtype))
        if run.cache_key:
            self.reused[run.cache_key] = run.reused
        if timed:
            self._seconds[spec] = run.seconds
            self.last = run
        return run

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds by stage, summed over the timed Runs, each counted once."""
        total: dict[str, float] = {}
        for each in self._seconds.values():
            for stage, spent in each.items():
                total[stage] = total.get(stage, 0.0) + spent
        return total

    @property
    def deciding(self) -> set[tuple[str, str]]:
        """The programs in which a Run of the session has recorded decisions."""
        return self.scheduler.deciding

    @property
    def notes(self) -> dict[str, None]:
        """Notes that the terminal summary prints once for all tests of the process."""
        return self.scheduler.executor.notes

    @property
    def folder(self) -> Path:
        """The folder of the session, which has those of its Runs; it outlasts the test."""
        return self.scheduler.executor.folders.root

    def held_up(self) -> float:
        """The seconds in which other test runs held the ranks of the machine."""
        return self.scheduler.executor.board.held_up()

    def keep(self, spec: RunSpec) -> Path:
        """Copies the trace of a Run to a folder that outlasts the test, and returns its path."""
        return self.scheduler.executor.folders.keep(self.get(spec).trace)
