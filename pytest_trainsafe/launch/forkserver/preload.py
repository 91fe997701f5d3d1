"""Learns which modules to preload: installed ones that ranks had to import themselves.

The ranks report them.  A child of the server tries each import first, because the server must
never run an import that starts a thread, initialises CUDA or changes the process.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import signal
import site
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from operator import is_
from typing import Any, NoReturn

from pytest_trainsafe.launch.supervise.reaper import (
    PR_SET_CHILD_SUBREAPER,
    PR_SET_PDEATHSIG,
    children,
    prctl,
    sweep,
)

_MODELS = "pytest_trainsafe.reference_models"

#: What the programs of this package import when they train, besides what these modules import.
_OF_PROGRAMS = (f"{_MODELS}.parallel.apply", f"{_MODELS}.training.language")

#: Modules of torch, and programs of this package, that are safe to import without a trial, each
#: with what it imports later.  All together take as long as torch itself, so the server imports
#: only those that a program uses.
SAFE: dict[str, tuple[str, ...]] = {
    "torch.distributed.tensor": (),
    "torch.distributed.tensor.parallel": (),
    "torch.distributed.fsdp": (),
    "torch._dynamo": (),
    **{f"{_MODELS}.{name}": _OF_PROGRAMS for name in ("gpt", "llama", "moe", "deepseek")},
}


def installed(names: Iterable[str]) -> list[str]:
    """The names of those imported modules that are in installed packages, in the given order.

    Excludes the user's project, which each group must import again.  This package counts as
    installed, wherever it is.
    """
    homes = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    with contextlib.suppress(AttributeError):  # an old virtual environment lacks these functions
        homes |= {*site.getsitepackages(), site.getusersitepackages()}
    folders = tuple(os.path.realpath(home) + os.sep for home in homes)
    found = []
    for name in names:
        spec = getattr(sys.modules.get(name), "__spec__", None)
        origin = getattr(spec, "origin", None)
        if getattr(spec, "name", None) != name or not isinstance(origin, str):
            continue  # created at run time, or imported under another name
        own = name.partition(".")[0] == __package__.partition(".")[0]
        if own or os.path.realpath(origin).startswith(folders):
            found.append(name)
    return found


def unsafe() -> str:
    """Why this process must not be forked; "" if it may be."""
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        return f"has {threads} threads"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "has initialised CUDA"
    return ""


class State:
    """The process state that an import must not change, because forked ranks would inherit it."""

    def __init__(self) -> None:
        self.facts = _facts()
        self.names = [(owner, dict(vars(owner))) for owner in _patched()]

    def changes(self) -> str:
        """A list, as text, of what has changed since this object was made; "" if nothing has."""
        now = _facts()
        changed = [what for what, fact in self.facts.items() if now[what] != fact]
        for owner, names in self.names:
            present = vars(owner)
            # Additional names are allowed: importing a submodule adds its name, at the end.
            same = len(present) >= len(names) and all(
                map(is_, names.values(), present.values())  # pairs those of the same place
            )
            if not same:
                changed += [
                    f"{owner.__name__}.{n}" for n, v in names.items() if present.get(n) is not v
                ]
        return ", ".join(changed)


def _facts() -> dict[str, object]:
    import random

    import torch

    return {
        "the environment": dict(os.environ),
        "the working directory": os.getcwd(),
        "sys.path": list(sys.path),
        "signal handlers": [signal.getsignal(number) for number in signal.valid_signals()],
        "torch's default dtype": torch.get_default_dtype(),
        "torch's gradient mode": torch.is_grad_enabled(),
        "torch's number of threads": torch.get_num_threads(),
        "torch's deterministic mode": torch.are_deterministic_algorithms_enabled(),
        "torch's random state": torch.get_rng_state().numpy().tobytes(),
        "random's state": random.getstate(),
        "child processes": children(),
    }


def _patched() -> list[Any]:
    """The modules and classes of torch that other packages usually patch."""
    import torch
    import torch.distributed

    return [
        *(torch, torch.Tensor, torch.nn, torch.nn.Module, torch.nn.functional, torch.autograd),
        *(torch.distributed, sys.modules["torch.distributed.distributed_c10d"]),
    ]


@dataclass
class Trial:
    """A child process of the server that tries imports and reports their effects."""

    names: list[str]
    pid: int
    output: int
    received: bytes = b""

    def verdict(self) -> tuple[list[str], str, str]:
        """The modules that are safe to import, the first unsafe one, and why it is unsafe.

        The last two are "" if all are safe.  To be called when the child's output has ended.
        """
        good: list[str] = []
        trying = ""
        for line in self.received.splitlines():
            word, name, why = json.loads(line)
            if word == "try":
                trying = name
            elif word == "good":
                good.append(name)
                trying = ""
            else:
                return good, name, why
        return good, trying, f"its import ended the process ({trying})" if trying else ""


def start_trial(names: list[str]) -> Trial:
    """Forks a child that imports the modules one by one and reports the effect of each."""
    read, write = os.pipe()
    server = os.getpid()
    pid = os.fork()
    if pid:
        os.close(write)
        os.set_blocking(read, False)
        return Trial(names, pid, read)
    try:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == server:
            _try_all(names, write)
    finally:
        _end()


def _end() -> NoReturn:
    with contextlib.suppress(BaseException):
        sweep()
    os._exit(0)


def _try_all(names: list[str], write: int) -> None:
    signal.alarm(120)  # ends an import that blocks
    prctl(PR_SET_CHILD_SUBREAPER, 1)  # to end processes that an import starts and abandons
    state = State()
    for name in names:
        os.write(write, json.dumps(("try", name, "")).encode() + b"\n")
        try:
            importlib.import_module(name)
        except BaseException as error:  # whatever a module raises, also SystemExit
            why = f"its import raised {type(error).__name__}"
        else:
            changes = state.changes()
            why = unsafe() or (f"its import changes {changes}" if changes else "")
        word = "bad" if why else "good"
        os.write(write, json.dumps((word, name, why)).encode() + b"\n")
        if why:
            return
