"""The forked rank: makes a forked process equivalent to a fresh one, then runs `rank.main`.

Called by `group` in the child process.  One difference remains: string hashes are seeded once for
all ranks of the server, so all of them iterate over a set in the same order; under torchrun the
order differs between ranks.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from pytest_trainsafe.compat.forking import read_logs_again
from pytest_trainsafe.launch import rank
from pytest_trainsafe.launch.files import RankFiles, write_whole
from pytest_trainsafe.launch.forkserver import preload as warm_learn
from pytest_trainsafe.launch.supervise.reaper import PR_SET_PDEATHSIG, prctl

#: Signals that the parent processes ignore or handle.
_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD)


def run_rank(
    task_file: Path, number: int, environ: Mapping[str, str], cwd: str, gate: int
) -> NoReturn:
    """Runs the task as rank `number` in a process that was just forked, and exits.

    Prepares the rank, then waits for a byte from the pipe `gate` before it begins the program.
    """
    code = 70  # EX_SOFTWARE, if this function itself fails
    try:
        detach()
        become(environ, cwd)
        sys.argv[:] = [rank.__file__, str(task_file)]
        before = len(sys.modules)
        code = rank.main(task_file, lambda: _prepared(gate))
        if code == 0:
            tell_imports(RankFiles(task_file.parent, number), before)
    except BaseException:
        traceback.print_exc()
    rank.leave(code)


def detach() -> None:
    """Puts this process into a session of its own, which ends when its reaper does."""
    reaper = os.getppid()
    os.setsid()
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != reaper:
        os._exit(70)


def _prepared(gate: int) -> None:
    if not os.read(gate, 1):
        os._exit(1)  # every writer has closed the pipe
    os.close(gate)


def become(environ: Mapping[str, str], cwd: str) -> None:
    """Gives this process the state of one that was started with this environment and directory.

    Sets its environment variables and working directory, resets signal handlers, lets torch read
    its environment variables again, and reseeds the random generators.
    """
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(cwd)
    time.tzset()
    tempfile.tempdir = None
    gc.enable()
    _read_again(before)
    _shuffle()


def _read_again(before: Mapping[str, str]) -> None:
    """Makes torch read again some environment variables that it read when it was imported.

    `before` is the environment at that time.
    """
    import torch
    import torch.distributed as dist

    dist.set_debug_level_from_env()  # type: ignore[attr-defined]
    threads = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    if threads.isdigit() and int(threads):
        torch.set_num_threads(int(threads))
    read_logs_again(before, os.environ)


def _shuffle() -> None:
    """Reseeds every generator, as in a fresh process; programs may set their own seeds."""
    import torch

    random.seed()
    torch.default_generator.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def tell_imports(files: RankFiles, before: int) -> None:
    """Writes a file with the names of installed modules that the task imported.

    The fork server then preloads these modules for later ranks.  `before` is the number of modules
    that were already imported when the rank was forked.
    """
    # The last ones: reading the names of the others would copy the memory that they lie in, which
    # this process shares with the server.
    new = max(0, len(sys.modules) - before)
    names = warm_learn.installed(reversed([*itertools.islice(reversed(sys.modules), new)]))
    if names:
        write_whole(files.imported, json.dumps(names).encode())
