"""Launcher: the one thing every way of starting ranks can do."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from pytest_trainsafe.launch.result import GroupResult
from pytest_trainsafe.launch.task import Task


class Launcher(Protocol):
    """Starts a fresh group of ranks for a task and outlives it.

    `run` may be called from several threads and processes at once, with the same `workdir`.
    """

    @property
    def name(self) -> str:
        """The word by which a user chooses this launcher."""
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
        """Run the task and return every rank's outcome, whatever happens in the ranks.

        `timeout` is in seconds and counts from when every rank has begun the program.  Every
        file is below `workdir`.  Setting `stop`, from another thread, ends the group.  `environ`
        is the environment that the task's is added to, by default this process's own; it is
        written to no file.  When `run` returns or raises, no process of the group lives.
        """
        ...
