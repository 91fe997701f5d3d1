"""Runs a task by a command that starts its ranks, supervised.

What the torchrun launcher does, for launchers that start ranks by another command.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from pytest_trainsafe.launch.files import write_whole
from pytest_trainsafe.launch.outcome import group_result
from pytest_trainsafe.launch.result import GroupResult
from pytest_trainsafe.launch.supervise.processes import ReapedCommand
from pytest_trainsafe.launch.supervise.supervisor import Group
from pytest_trainsafe.launch.task import Task


def run_command(
    task: Task,
    command: Callable[[Path], Sequence[str]],
    *,
    environ: Mapping[str, str],
    timeout: float,
    workdir: Path,
    stop: threading.Event | None = None,
    grace: float = 3.0,
    startup_timeout: float = 180.0,
) -> GroupResult:
    """Run a task in a new folder below `workdir` and return every rank's outcome.

    `command` makes the command line from the task's file.  The command starts `rank_command` of
    that file as often as the task has ranks, on this machine, each with torchrun's variables (RANK,
    LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT), and ends when all have
    ended, with the exit code 0 if theirs all are.  `environ` is its whole environment; see
    `environment`.  `grace` is how long ranks may go on after a first failure, `startup_timeout`
    how long until all have begun; `timeout` and `stop` are as in `Launcher.run`.
    """
    workdir.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="group-", dir=workdir.absolute()))
    task_file = folder / "task.msgpack"
    write_whole(task_file, msgspec.msgpack.encode(task))
    processes = ReapedCommand(command(task_file), environ, task.cwd or os.getcwd())
    with Group(processes, folder, task.world_size) as group:
        group.wait(
            timeout=timeout,
            startup_timeout=startup_timeout,
            grace=grace,
            stop=stop or threading.Event(),
        )
    return group_result(task, folder, group.state, timeout, startup_timeout)


def rank_command(task_file: Path) -> list[str]:
    """The command line of one rank.

    `-P` keeps the working directory out of the module search path of the rank's own start; the
    program gets the search path of its task.
    """
    return [sys.executable, "-u", "-P", "-m", "pytest_trainsafe.launch.rank", str(task_file)]
