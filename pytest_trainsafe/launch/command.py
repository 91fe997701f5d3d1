"""Runs a command that starts the ranks of a task, and supervises the ranks.

The torchrun launcher uses it, and so may launchers that start ranks by another command.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from pytest_trainsafe.launch.console.attend import attend
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
    """Runs a task in a new folder below `workdir` and returns every rank's outcome.

    `command` is called with the path of the task's file and returns a command line.  This command
    must start one process on this machine for each rank.  Each process must run the command line
    that `rank_command` returns for the same path, and have torchrun's environment variables (RANK,
    LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT).  The command must end when
    all ranks have ended, with exit code 0 if the exit codes of all ranks are 0.  `environ` is the
    command's whole environment; the function `environment` makes one.  `grace` is how many seconds
    the other ranks may continue after a first failure.  `startup_timeout` is how many may pass
    until all ranks have begun.  `timeout` and `stop` are as in `Launcher.run`.
    """
    workdir.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="group-", dir=workdir.absolute()))
    task_file = folder / "task.msgpack"
    write_whole(task_file, msgspec.msgpack.encode(task))
    # before the ranks run: one may ask for the terminal at once
    attendance = attend(task, folder)
    processes = ReapedCommand(command(task_file), environ, task.cwd or os.getcwd())
    with Group(processes, folder, task.world_size, attendance) as group:
        group.wait(
            timeout=timeout,
            startup_timeout=startup_timeout,
            grace=grace,
            stop=stop or threading.Event(),
        )
    return group_result(task, folder, group.state, timeout, startup_timeout)


def rank_command(task_file: Path) -> list[str]:
    """The command line that starts one rank of the task in this file.

    `-P` keeps the working directory out of the module search path while the rank starts; the
    program gets the search path of its task.
    """
    return [sys.executable, "-u", "-P", "-m", "pytest_trainsafe.launch.rank", str(task_file)]
