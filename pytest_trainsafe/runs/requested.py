"""The Runs that one test requests for its reference or for its candidate.

Judges request Runs here, through `Traces`; the session launches, shares and caches them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_trainsafe.launch import GroupFailure, GroupResult
from pytest_trainsafe.record.reads.notes import Notes, checked
from pytest_trainsafe.sweep.namesakes import refuse_other_file_in_ranks
from pytest_trainsafe.sweep.point_summary import PointSummary
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.run_spec import RunSpec

if TYPE_CHECKING:
    from pytest_trainsafe.runs.session import Session


@dataclass(frozen=True, slots=True)
class Run:
    """A finished Run: its Trace, and seconds by stage (launch, train).

    `cache_key` is the cache key under which the Run was looked up, or "" if the cache was not used;
    `reused` is whether the cache had the Run.  `notes` says what the program read; it is empty
    unless this process made the Run and stored it in the cache.  `files` is the folder with the
    files of the ranks, such as their output; None if they are unknown.
    """

    trace: Trace
    seconds: Mapping[str, float]
    cache_key: str = ""
    reused: bool = False
    notes: Notes = field(default_factory=Notes)
    files: Path | None = None


@dataclass(frozen=True, slots=True)
class Recorded:
    """Data on a Run besides its trace: seconds by stage, what its program read, and its folder.

    The folder has the files of the Run's ranks.
    """

    seconds: Mapping[str, float]
    notes: Notes
    files: Path

    @classmethod
    def of(cls, result: GroupResult) -> Recorded:
        """The data that the ranks of a finished group return."""
        train = max(value["seconds"] for value in result.values)
        seconds = {"launch": result.seconds - train, "train": train}
        notes = checked(value.get("noted") for value in result.values)
        return cls(seconds, notes, result.folder)


class RequestedRuns:
    """The Runs that a test requested for its reference or for its candidate, and their status.

    `specs` has the spec of every requested Run.  `reused` says for each cache key whether the
    cache already had the Run.  `waited` says whether the test has waited for any Run, and `last` is
    the last timed Run that it got.
    `publish` is called with the Point's summary once the Point is judged; it is None if
    nothing takes the summary.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.specs: set[RunSpec] = set()
        self.reused: dict[str, bool] = {}
        self.waited = False
        self.last: Run | None = None
        self.publish: Callable[[PointSummary], None] | None = None
        self._seconds: dict[RunSpec, Mapping[str, float]] = {}

    def start(self, spec: RunSpec) -> Future[Run]:
        """Launches a Run unless it has finished or is in progress; returns a Future of it.

        Raises InvalidProgramError if the ranks would import another file than the tests have.
        """
        __tracebackhide__ = True
        if spec not in self.specs and not spec.script:
            refuse_other_file_in_ranks(spec.program)
        self.specs.add(spec)
        return self.session.run(spec)

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

    def look_ahead(self) -> None:
        """Launches the next test's Runs; called when all Runs of this test are launched."""
        self.session.look_ahead()

    @property
    def notes(self) -> dict[str, None]:
        """Notes that the terminal summary prints once for all tests of the process."""
        return self.session.notes
