"""Launcher, the protocol of classes that start ranks, and protocols of their optional features.

Code outside of a launcher's own folder checks for these protocols, never for the launcher's class.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from pytest_trainsafe.launch.result import GroupResult
from pytest_trainsafe.launch.task import Task


@dataclass(frozen=True, slots=True)
class LaunchSetup:
    """The arguments for creating a launcher.  Each pytest process creates its own launchers.

    `network` is the value of `--trainsafe-network`. All processes of a pytest run, such as the
    workers of pytest-xdist, have the same `folder` and the same process id `controller`. `tell`
    receives sentences that the user should read whether or not the test passes. `max_threads` is
    the value of `--trainsafe-max-threads`.
    """

    network: str
    folder: Path
    controller: int
    tell: Callable[[str], None]
    max_threads: int = 64


@runtime_checkable
class Launcher(Protocol):
    """Starts a new group of ranks for a task and returns when all its processes have ended.

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
        `run_command` does all of this for a command that starts the ranks.
        """
        ...


class Begun(Protocol):
    """Ranks that were started ahead and wait before the program begins."""

    def run(self, *, timeout: float, stop: threading.Event) -> GroupResult:
        """Lets the ranks begin the program and returns every rank's outcome; see `Launcher.run`."""
        ...

    def end(self) -> None:
        """Ends the ranks of a group that will not be run after all."""
        ...


@runtime_checkable
class StartsEarly(Protocol):
    """A launcher that can start ranks before there is room for them to train."""

    def begin(
        self, task: Task, workdir: Path, environ: Mapping[str, str] | None = None
    ) -> Begun | None:
        """Starts the ranks of a task that is about to be run; returns None if that fails.

        Exactly one of `run` and `end` is called on the result.
        """
        ...


@runtime_checkable
class CountsSlots(Protocol):
    """A launcher whose ranks do not all compute at once."""

    def slots(self, task: Task) -> int:
        """How many ranks of the task compute at the same time."""
        ...


@runtime_checkable
class Closes(Protocol):
    """A launcher with state for the whole pytest run."""

    def close(self) -> None:
        """Releases the launcher's state; called once, when no group runs any more."""
        ...
