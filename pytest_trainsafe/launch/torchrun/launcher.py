"""TorchrunLauncher: starts ranks with the real torchrun, as users do."""

from __future__ import annotations

import os
import sys
import threading
import uuid
from collections.abc import Mapping
from pathlib import Path

from pytest_trainsafe.launch.command import rank_command, run_command
from pytest_trainsafe.launch.protocol import LaunchSetup
from pytest_trainsafe.launch.resources import namespace
from pytest_trainsafe.launch.result import GroupResult
from pytest_trainsafe.launch.supervise.unreachable import in_private_network
from pytest_trainsafe.launch.task import Task

#: Variables that torchrun sets for its workers; a test run that is itself such a worker must not
#: pass them on to its ranks.
_TORCHRUN_SETS = {
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME"),
    *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"),
}

#: The variables that name the network device of gloo, NCCL and TensorPipe.
_DEVICES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")

#: The variable for the number of entries in torch's flight recorder, and its former name.
_RECORDER_SIZES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
#: The default of torch 2.14; that of torch 2.10 is 0, which disables the recorder.
_RECORDER_ENTRIES = "2000"


class TorchrunLauncher:
    """Runs a task under `torch.distributed.run`, one new group per task.

    The store through which the ranks meet is in torchrun's agent, on a port of 127.0.0.1 that the
    system chose, so groups cannot collide.  `grace` is how many seconds the other ranks may
    continue after a first failure, and `startup_timeout` how many seconds may pass until all ranks
    have begun.  `network` is "private" for a network that only the group's ranks share, "host" for
    the machine's network, or "auto" for "private" if the kernel allows it, else "host".
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
        """Runs the task in a new folder below `workdir`; see `Launcher.run`."""
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

    `-P` keeps the working directory out of torchrun's module search path.  `--log-dir` is
    set because torchrun would otherwise leave a folder among the temporary files.
    """
    return [
        *((sys.executable, "-I", "-S", namespace.__file__) if private else ()),
        *(sys.executable, "-P", "-m", "pytest_trainsafe.launch.torchrun.agent"),
        *("--nnodes", "1", "--nproc-per-node", str(world_size), "--max-restarts", "0"),
        *("--rdzv-backend", "trainsafe", "--rdzv-id", uuid.uuid4().hex),
        *("--rdzv-endpoint", "127.0.0.1"),  # not used, but torchrun warns without it
        *("--log-dir", str(task_file.with_name("torchrun")), "--no-python"),
        *rank_command(task_file),
    ]


def environment(task: Task, ours: Mapping[str, str]) -> dict[str, str]:
    """The environment in which ranks start: `ours`, changed for a group on one machine.

    Variables that torchrun sets are removed and the task's are added.  gloo, NCCL and TensorPipe
    use the loopback device, the only one in a network namespace: a cluster's login may have set
    their variables to other devices.  torch's flight recorder is enabled, unless the user set its
    size.
    """
    env = {name: value for name, value in ours.items() if not _is_torchruns(name)}
    env |= dict.fromkeys(_DEVICES, "lo")
    env["OMP_NUM_THREADS"] = str(task.threads)
    env |= task.env
    if not any(name in env for name in _RECORDER_SIZES):
        env[_RECORDER_SIZES[0]] = _RECORDER_ENTRIES
    return env


def is_launchers(name: str) -> bool:
    """Whether launchers set this variable for their ranks, whatever its value was before."""
    return _is_torchruns(name) or name in (*_DEVICES, "OMP_NUM_THREADS") or name in _RECORDER_SIZES


def _is_torchruns(name: str) -> bool:
    # PET_* are defaults of torchrun's own options.
    return name in _TORCHRUN_SETS or name.startswith(("TORCHELASTIC_", "PET_"))
