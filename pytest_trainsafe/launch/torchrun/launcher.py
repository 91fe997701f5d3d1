"""TorchrunLauncher: ranks started by a real torchrun, as users start theirs."""

from __future__ import annotations

import os
import sys
import threading
import uuid
from collections.abc import Mapping
from pathlib import Path

from pytest_trainsafe.launch.protocol import LaunchSetup
from pytest_trainsafe.launch.resources import namespace
from pytest_trainsafe.launch.result import GroupResult
from pytest_trainsafe.launch.supervise.command import rank_command, run_command
from pytest_trainsafe.launch.supervise.unreachable import in_private_network
from pytest_trainsafe.launch.task import Task

#: What torchrun sets for its workers; a test run that is itself a worker must not hand it on.
_TORCHRUN_SETS = {
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME"),
    *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"),
}

#: Either sets how many entries torch's flight recorder keeps: the variable's name, and its old one.
_RECORDER_SIZES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
#: The default of torch 2.14.  That of torch 2.10 is 0: nothing is recorded.
_RECORDER_ENTRIES = "2000"


class TorchrunLauncher:
    """Runs a task under `torch.distributed.run`, one fresh group a task.

    The store of the ranks lives in torchrun's agent, on a port of 127.0.0.1 that the system
    chose, so no other group can take it.  `grace` is how long ranks may go on after a first
    failure, `startup_timeout` how long until all have begun.  `network` is "private" for a
    network of the group's own, "host" for the machine's, or "auto" for the first where the
    kernel allows it.
    """

    name = "torchrun"

    def __init__(
        self, *, grace: float = 3.0, startup_timeout: float = 180.0, network: str = "auto"
    ) -> None:
        self.grace = grace
        self.startup_timeout = startup_timeout
        self.network = network

    def run(
        self,
        task: Task,
        *,
        timeout: float,
        workdir: Path,
        stop: threading.Event | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> GroupResult:
        """Run the task in a new folder below `workdir`; see `Launcher.run`."""
        private = namespace.is_private(self.network)
        result = run_command(
            task,
            lambda task_file: command(task.world_size, task_file, private=private),
            environ=environment(task, os.environ if environ is None else environ),
            timeout=timeout,
            workdir=workdir,
            stop=stop,
            grace=self.grace,
            startup_timeout=self.startup_timeout,
        )
        return in_private_network(result) if private else result


def make(setup: LaunchSetup, stop: threading.Event) -> TorchrunLauncher:
    """The launcher `torchrun` of a pytest process."""
    return TorchrunLauncher(network=setup.network)


def command(world_size: int, task_file: Path, *, private: bool) -> list[str]:
    """The command line of torchrun's agent for a group on this machine.

    `-P` keeps the working directory out of torchrun's module search path.  Without `--log-dir`
    torchrun makes a folder where temporary files go, and leaves it there.
    """
    return [
        *((sys.executable, "-I", "-S", namespace.__file__) if private else ()),
        *(sys.executable, "-P", "-m", "pytest_trainsafe.launch.torchrun.agent"),
        *("--nnodes", "1", "--nproc-per-node", str(world_size), "--max-restarts", "0"),
        *("--rdzv-backend", "trainsafe", "--rdzv-id", uuid.uuid4().hex),
        *("--rdzv-endpoint", "127.0.0.1"),  # not used: torchrun warns where it is missing
        *("--log-dir", str(task_file.with_name("torchrun")), "--no-python"),
        *rank_command(task_file),
    ]


def environment(task: Task, ours: Mapping[str, str]) -> dict[str, str]:
    """The environment of what starts the ranks: ours, on loopback, and what the task adds.

    A cluster's login sets the libraries' variables to devices that reach other machines, which
    no group here needs and a private network lacks.  torch's flight recorder is on, unless the
    user chose its size.
    """
    env = {name: value for name, value in ours.items() if not _is_torchruns(name)}
    env |= dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME"), "lo")
    env["OMP_NUM_THREADS"] = str(task.threads)
    env |= task.env
    if not any(name in env for name in _RECORDER_SIZES):
        env[_RECORDER_SIZES[0]] = _RECORDER_ENTRIES
    return env


def _is_torchruns(name: str) -> bool:
    # PET_* are the defaults of torchrun's own options
    return name in _TORCHRUN_SETS or name.startswith(("TORCHELASTIC_", "PET_"))
