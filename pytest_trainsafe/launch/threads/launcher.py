"""ThreadsLauncher: runs the ranks of a group as threads of one process, one at a time."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

from pytest_trainsafe.errors import DeclarationError
from pytest_trainsafe.launch.forkserver import launcher as warm
from pytest_trainsafe.launch.forkserver.launcher import Forked, WarmLauncher
from pytest_trainsafe.launch.protocol import Launcher, LaunchSetup
from pytest_trainsafe.launch.result import GroupResult
from pytest_trainsafe.launch.task import Task


class UnsuitableTaskError(DeclarationError):
    """The launcher `threads` cannot run a task; the message says why."""


class ThreadsLauncher(WarmLauncher):
    """Runs a task in one forked process, whose threads are the ranks.

    Only one rank runs at a time, until it waits for another one.  So a group starts faster than
    processes do, the same program computes the same bits each time, and a group that cannot go on
    is noticed at once.  Arguments are those of `WarmLauncher`; `most` is the most ranks of a group,
    the value of --trainsafe-max-threads.
    """

    name = "threads"
    in_threads = True
    most = 64

    def run(
        self,
        task: Task,
        *,
        timeout: float,
        workdir: Path,
        stop: threading.Event | None = None,
        environ: Mapping[str, str] | None = None,
        begun: Forked | None = None,
    ) -> GroupResult:
        """Runs the task in a new folder below `workdir`; see `Launcher.run`.

        Raises UnsuitableTaskError for a task on GPUs, or with too many ranks.
        """
        self._check(task)
        return super().run(
            task, timeout=timeout, workdir=workdir, stop=stop, environ=environ, begun=begun
        )

    def slots(self, task: Task) -> int:
        """One: the ranks run in turn."""
        return 1

    def _fallback_for(self, task: Task, why: str) -> Launcher:
        if task.schedule is not None:
            raise UnsuitableTaskError(
                f"{task} is to run with {task.schedule}, for which its ranks must share a process, "
                f"but no process can be forked for them: {why}"
            )
        return super()._fallback_for(task, why)

    def _check(self, task: Task) -> None:
        if task.device != "cpu":
            raise UnsuitableTaskError(
                f"the launcher `threads` runs ranks on the CPU, but {task} is to run on "
                f"{task.device!r}; run with --trainsafe-device cpu, or with another launcher"
            )
        if task.world_size > self.most:
            raise UnsuitableTaskError(
                f"{task} has {task.world_size} ranks, but the launcher `threads` runs at most "
                f"{self.most} in one process; use fewer ranks, another launcher, or "
                "--trainsafe-max-threads with a larger number"
            )


def make(setup: LaunchSetup, stop: threading.Event) -> ThreadsLauncher:
    """The launcher `threads` of this pytest process, which uses the run's fork server."""
    address, server = warm.fork_server(setup, stop)
    made = ThreadsLauncher(address, network=setup.network, warn=setup.tell, server=server)
    made.most = setup.max_threads
    return made
