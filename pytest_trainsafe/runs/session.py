"""The one Session of a pytest process: it gives tests the Traces of the Runs that they need.

Runs are launched ahead in threads; each leases slots for its ranks (`execution/`).  All tests,
processes and later pytest runs share one Run of each reference.
"""

from __future__ import annotations

import glob
from pathlib import Path

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.launch.launch_environment import LaunchEnvironment
from pytest_trainsafe.runs.ahead import NextTest
from pytest_trainsafe.runs.cached.cache import ReferenceCache
from pytest_trainsafe.runs.execution.executor import Executor
from pytest_trainsafe.runs.execution.folders import Folders
from pytest_trainsafe.runs.execution.groups import Groups
from pytest_trainsafe.runs.execution.retirement import Retirement
from pytest_trainsafe.runs.execution.scheduler import Scheduler
from pytest_trainsafe.runs.requested import RequestedRuns
from pytest_trainsafe.runs.specs import Role
from pytest_trainsafe.runs.traces import Traces
from pytest_trainsafe.sweep.case import Case

#: The roles, in the order in which their Runs are launched ahead.
ROLES: tuple[Role, ...] = ("reference", "candidate")


class Session:
    """Runs programs for tests; `basetemp` holds traces and logs.

    `cache_folder` holds the references for later pytest runs; None disables the cache.  If pytest
    runs in several processes (pytest-xdist), `shared` is the folder that all of them use, and
    `controller` is the id of the process that started them; by default there is only this process.
    """

    def __init__(
        self,
        settings: Settings,
        basetemp: Path,
        cache_folder: Path | None = None,
        shared: Path | None = None,
        controller: int | None = None,
    ) -> None:
        self.settings = settings
        self.notes = dict.fromkeys(
            f"trainsafe_cache_inputs: {pattern} matches no file, so it has no effect"
            for pattern in settings.cache_inputs
            if not pattern.startswith("$")
            and not any(glob.iglob(pattern, recursive=True, include_hidden=True))
        )
        self.folders = Folders(Path(settings.keep_traces or basetemp) / "trainsafe")
        self.groups = Groups(
            *(settings, shared or basetemp, controller),
            lambda text: self.notes.update({text: None}),
        )
        self.cache = ReferenceCache(cache_folder, settings.cache_size) if cache_folder else None
        self.executor = Executor(settings, self.folders, self.groups, self.cache, self.notes)
        self.scheduler = Scheduler(self.executor)
        self.retirement = Retirement(self.scheduler)
        self.next: NextTest | None = None

    def reference(self, case: Case) -> Traces:
        """The Traces of a test's reference Runs."""
        self.scheduler.begin_test()
        self.retirement.forget_references()
        return self._traces(case, "reference")

    def candidate(self, case: Case) -> Traces:
        """The Traces of a test's Runs under test."""
        self.scheduler.begin_test()
        traces = self._traces(case, "candidate")
        self.retirement.drop(keep=traces.specs())
        return traces

    def look_ahead(self) -> None:
        """Launches the Runs of the next test, if it is known and independent of the current test.

        They are discarded unless that test requests them in the same environment.
        """
        following, self.next = self.next, None
        if following is None or following.launch_environment != LaunchEnvironment.now():
            return
        roles = [self._traces(following.case, role) for role in ROLES]
        behind = self.scheduler.not_joined()
        for dtype in following.case.rungs:
            for spec in (spec for role in roles for spec in role.needed(dtype)):
                self.scheduler.run_ahead(spec, following.launch_environment, behind)

    def discard(self, traces: Traces) -> None:
        """Releases a test's candidate Runs; the next test may still reuse them."""
        self.retirement.retire(traces.specs())

    def stop_runs(self) -> None:
        """Stops all Runs in progress, and does not wait."""
        self.scheduler.stop()

    def close(self) -> None:
        """Stops all Runs in progress and waits until they have ended."""
        self.scheduler.close()
        self.groups.launchers.close()
        self.retirement.drop(keep=set())
        if self.cache is not None:
            self.cache.close()

    def _traces(self, case: Case, role: Role) -> Traces:
        runs = RequestedRuns(self.scheduler, self.look_ahead)
        return Traces(case, role, runs, case.settings.record)
