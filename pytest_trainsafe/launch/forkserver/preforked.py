"""A group whose ranks may be forked before there is room to run it, to hide their start-up time.

Called by the session.  The forked ranks wait before the program begins.  At most one group of a
user waits in this way: the one that is next in the queue for room.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import msgspec

from pytest_trainsafe.launch.protocol import Begun, Launcher, StartsEarly
from pytest_trainsafe.launch.resources.leases import LEASED
from pytest_trainsafe.launch.result import GroupResult
from pytest_trainsafe.launch.task import Task


class PreforkedGroup:
    """A task to be run by a launcher, in the environment `environ`; see `Launcher.run`.

    Leaving the `with` block ends ranks that were forked but never run.
    """

    def __init__(
        self,
        launcher: Launcher,
        task: Task,
        workdir: Path,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._launcher = launcher
        self._environ = environ
        self._task = msgspec.structs.replace(task, env={**task.env, LEASED: "1"})
        self._workdir = workdir
        self._begun: Begun | None = None

    def __enter__(self) -> PreforkedGroup:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._begun is not None:
            self._begun.end()

    def begin(self) -> None:
        """Starts the ranks, if the launcher can do so before it runs them.

        Does nothing for a task on GPUs, because GPUs are leased later.
        """
        if isinstance(self._launcher, StartsEarly) and self._task.device == "cpu":
            self._begun = self._launcher.begin(self._task, self._workdir, self._environ)

    def run(self, env: Mapping[str, str], timeout: float, stop: threading.Event) -> GroupResult:
        """Runs the task and returns every rank's outcome; see `Launcher.run`.

        `env` holds the environment variables of the group's lease, which the ranks get.  It is
        ignored for ranks that `begin` started.  They train on the CPU, where a lease has only one
        variable, and their environment already contains it.
        """
        begun, self._begun = self._begun, None
        if begun is not None:
            return begun.run(timeout=timeout, stop=stop)
        task = msgspec.structs.replace(self._task, env={**self._task.env, **env})
        return self._launcher.run(
            task, timeout=timeout, workdir=self._workdir, stop=stop, environ=self._environ
        )
