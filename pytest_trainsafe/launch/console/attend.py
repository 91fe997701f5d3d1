"""Attendance: what the supervisor of a group does for the group on the console while it waits."""

from __future__ import annotations

from pathlib import Path

from pytest_trainsafe.launch.console.console import Console, current
from pytest_trainsafe.launch.console.relay import Relay
from pytest_trainsafe.launch.files import RankFiles
from pytest_trainsafe.launch.task import Task


class Attendance:
    """Shows the output of a group's ranks until `end`."""

    def __init__(self, console: Console, task: Task, folder: Path) -> None:
        ranks = [RankFiles(folder, rank) for rank in range(task.world_size)]
        self._relay = Relay(console, ranks, task.live) if task.live is not None else None

    def end(self) -> None:
        """Shows the rest of the output.  No rank runs any more."""
        if self._relay is not None:
            self._relay.stop()


def attend(task: Task, folder: Path) -> Attendance | None:
    """The Attendance of a group with this folder; None if this process has no console."""
    console = current()
    return Attendance(console, task, folder) if console is not None else None
