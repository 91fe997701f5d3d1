"""What the ranks of the warm launcher's tests run."""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy
import torch
from torch._C._distributed_c10d import get_debug_level

from tests.support.launch.programs import every_collective

state: list[str] = []


def leave_state_behind() -> None:
    """Change what a process has, in every way that a training program does."""
    state.append("job 1")
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(1)
    random.seed(1)
    torch.use_deterministic_algorithms(True)
    setattr(torch.nn.functional, "linear", _patch)  # noqa: B010
    os.environ["LEFT_BY_JOB_1"] = "yes"
    sys.modules["made_by_job_1"] = sys.modules[__name__]


def _patch() -> None:
    """Replaces a function of torch."""


def find_state() -> list[str]:
    """What is left of `leave_state_behind`."""
    found = [*state, *(name for name in ("LEFT_BY_JOB_1",) if name in os.environ)]
    found += [str(torch.get_default_dtype())] * (torch.get_default_dtype() != torch.float32)
    found += ["deterministic"] * torch.are_deterministic_algorithms_enabled()
    found += ["patched"] * (torch.nn.functional.linear.__name__ == "_patch")
    return found + ["module"] * ("made_by_job_1" in sys.modules)


def draw() -> list[float]:
    """A random number of each generator, unseeded."""
    return [torch.rand(()).item(), random.random(), float(numpy.random.rand())]


def draw_seeded() -> list[float]:
    """A random number of each generator, seeded."""
    torch.manual_seed(7), random.seed(7), numpy.random.seed(7)
    return draw()


def process_state() -> dict[str, Any]:
    """What a program can see of the process it runs in."""
    fds = {os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _open(fd)}
    folder = str(Path.cwd())
    return {
        "environ": dict(os.environ),
        "files": sorted(Path(fd).name for fd in fds if fd.startswith("/") and "/rank" in fd),
        "number of descriptors": len(fds),
        "argv": [Path(arg).name for arg in sys.argv],
        "path": sys.path,
        "cwd": folder,
        "signals": {
            n.name: str(signal.getsignal(n)).partition(" at 0x")[0] for n in signal.Signals
        },
        "leads a session": os.getsid(0) == os.getpid(),
        "threads": torch.get_num_threads(),
        "debug": str(get_debug_level()),
        "log level": logging.getLogger("torch._dynamo").level,
        "flags": str(sys.flags),
        "encoding": (sys.stdout.encoding, sys.stdout.write_through),  # type: ignore[union-attr]
        "umask": os.umask(0o022),
        "tasks": len(os.listdir("/proc/self/task")),
        "main": sys.modules["__main__"].__name__,
    }


def state_before_collectives() -> dict[str, Any]:
    """What `process_state` finds in a process that then uses every collective; four ranks."""
    found = process_state()
    every_collective()
    return found


def _open(fd: str) -> bool:
    return os.path.exists(f"/proc/self/fd/{fd}") or os.path.islink(f"/proc/self/fd/{fd}")


def import_by_name(*names: str) -> list[bool]:
    """Import modules; for each, whether it was there already."""
    there = [name in sys.modules for name in names]
    for name in names:
        __import__(name)
    return there


def fork_server_of_this_rank() -> int:
    """The process that forked this rank."""
    return os.getppid()


def meet(folder: str) -> int:
    """Wait until two groups are here; return how many came."""
    (Path(folder) / f"here-{os.getpid()}").touch()
    while (here := len(list(Path(folder).glob("here-*")))) < 2:
        time.sleep(0.005)
    return here
