"""Launches a task in a group of ranks and returns every rank's outcome.

This package imports nothing that trains, records or judges; the fork server loads such modules
before it forks, by their names.  Public names are imported on first use, and none of their modules
imports torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_trainsafe.launch.command import rank_command, run_command
    from pytest_trainsafe.launch.data import NotDataError
    from pytest_trainsafe.launch.failure import GroupFailure, raise_for_failure
    from pytest_trainsafe.launch.forkserver.launcher import WarmLauncher
    from pytest_trainsafe.launch.forkserver.start import WarmServer
    from pytest_trainsafe.launch.protocol import Launcher, LaunchSetup
    from pytest_trainsafe.launch.result import GroupResult, RankResult
    from pytest_trainsafe.launch.task import Script, Task
    from pytest_trainsafe.launch.threads.launcher import ThreadsLauncher
    from pytest_trainsafe.launch.torchrun.launcher import TorchrunLauncher, environment

__all__ = [
    "GroupFailure",
    "GroupResult",
    "LaunchSetup",
    "Launcher",
    "NotDataError",
    "RankResult",
    "Script",
    "Task",
    "ThreadsLauncher",
    "TorchrunLauncher",
    "WarmLauncher",
    "WarmServer",
    "environment",
    "raise_for_failure",
    "rank_command",
    "run_command",
]

_HOME = {
    "GroupFailure": "failure",
    "GroupResult": "result",
    "LaunchSetup": "protocol",
    "Launcher": "protocol",
    "NotDataError": "data",
    "RankResult": "result",
    "Script": "task",
    "Task": "task",
    "ThreadsLauncher": "threads.launcher",
    "TorchrunLauncher": "torchrun.launcher",
    "WarmLauncher": "forkserver.launcher",
    "WarmServer": "forkserver.start",
    "environment": "torchrun.launcher",
    "raise_for_failure": "failure",
    "rank_command": "command",
    "run_command": "command",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
