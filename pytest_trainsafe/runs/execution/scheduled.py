"""A requested Run, which may wait, train or have finished."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

from pytest_trainsafe.launch.launch_environment import LaunchEnvironment
from pytest_trainsafe.runs.execution.run import Run
from pytest_trainsafe.runs.progress.board import Enter
from pytest_trainsafe.trace.run_spec import RunSpec


@dataclass(slots=True, eq=False)
class ScheduledRun:
    """A requested Run, the environment at the time of the request, and the Future of its result.

    `earlier` has the Runs that it follows: from whose checkpoint it continues, or whose decisions
    it replays.  The Run waits for the events in `behind` before it joins the queue for slots.
    `joined` is set when it is in the queue or needs no slots.
    """

    spec: RunSpec
    launch_environment: LaunchEnvironment
    earlier: Mapping[RunSpec, Future[Run]]
    behind: tuple[threading.Event, ...] = ()
    stop: threading.Event = field(default_factory=threading.Event)
    joined: threading.Event = field(default_factory=threading.Event)
    run: Future[Run] = field(init=False)
    #: Shows the Run's stage on the session's board.
    enter: Enter = field(default=lambda stage, behind="": None)

    def trace_of(self, earlier: RunSpec) -> Path:
        """Waits for a Run that this one follows to end, and returns the folder of its trace."""
        return self.earlier[earlier].result().trace.path

    @property
    def succeeded(self) -> bool:
        """Whether the Run is done and has a result."""
        return self.run.done() and not self.run.cancelled() and self.run.exception() is None
