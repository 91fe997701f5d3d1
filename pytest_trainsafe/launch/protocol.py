"""Launcher: the protocol of every way to start ranks."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from pytest_trainsafe.launch.result import GroupResult
from pytest_trainsafe.launch.task import Task


class Launcher(Protocol):
    """Starts a new group of ranks for a task and returns when all of it has ended.

    `run` may be called from several threads and processes at once, with the same `workdir`.
    """

    @property
    def name(self) -> str:
        """The name by which a user selects this launcher."""
        ...

    def run(
        self,
        task: Task,
        *,
        timeout: float,
        workdir: Path,
        stop: threading.Event | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> GroupResult:
        """Runs the task and returns every rank's outcome, whatever happens in the ranks.

        `timeout` is in seconds, from the moment when every rank has begun the program.  All files
        are below `workdir`.  Setting `stop` from another thread ends the group.  `environ` is the
        environment to which the task adds its variables, by default this process's own; it is
        not written to any file.  When `run` returns or raises, no process of the group is alive.
        """
        ...
