"""Attendance: what the supervisor of a group does for the group on the console while it waits."""

from __future__ import annotations

from pathlib import Path

from pytest_trainsafe.launch.console.console import Console, current
from pytest_trainsafe.launch.console.loan import Loan
from pytest_trainsafe.launch.console.relay import Relay
from pytest_trainsafe.launch.files import RankFiles
from pytest_trainsafe.launch.task import Task


class Attendance:
    """Shows the output of a group's ranks, and lends them the terminal, until `end`."""

    def __init__(self, console: Console, task: Task, folder: Path) -> None:
        ranks = [RankFiles(folder, rank) for rank in range(task.world_size)]
        self._relay = Relay(console, ranks, task.live) if task.live is not None else None
        debugs = console.terminal is not None and task.debug is not None and task.debug >= 0
        self._loan = Loan(console, folder) if debugs else None

    def in_debugger(self) -> bool:
        """Whether a rank has the terminal or waits for it; time limits are suspended meanwhile.

        Called again and again: it is this call that lends the terminal and takes it back.
        """
        if self._loan is None or not self._loan.asked():
            return False
        if self._relay is not None and not self._loan.lent:
            self._relay.copy()  # what the ranks printed before
        self._loan.update()
        return self._loan.asked()

    def end(self) -> None:
        """Takes the terminal back, and shows the rest of the output.  No rank runs any more."""
        if self._loan is not None:
            self._loan.close()
        if self._relay is not None:
            self._relay.stop()


def attend(task: Task, folder: Path) -> Attendance | None:
    """The Attendance of a group with this folder; None if this process has no console."""
    console = current()
    return Attendance(console, task, folder) if console is not None else None
