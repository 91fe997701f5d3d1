"""The forked rank: what a fresh process has and a forked one lacks, then `rank.main` as ever.

Called by `warm_group` in the child.  What cannot be had by forking: string hashes are seeded once
for all ranks of the server, so an order that comes from a set is the same in all of them; under
torchrun it is not.
"""

from __future__ import annotations

import gc
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

from pytest_trainsafe.launch import rank
from pytest_trainsafe.launch.files import RankFiles, write_whole
from pytest_trainsafe.launch.forkserver import bindings as warm_bindings
from pytest_trainsafe.launch.forkserver import preload as warm_learn
from pytest_trainsafe.launch.supervise.guard import PR_SET_PDEATHSIG, prctl

#: Signals that the processes above a rank ignore or handle.
_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD)


def run_rank(
    task_file: Path, number: int, environ: Mapping[str, str], cwd: str, gate: int
) -> NoReturn:
    """Run the task as rank `number`, in a process that was just forked, and end it.

    It begins when there is a byte for it in the pipe `gate`: all that can be done before is.
    """
    code = 70  # EX_SOFTWARE, should this function itself fail
    try:
        guard = os.getppid()
        os.setsid()
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:
            os._exit(code)
        become(environ, cwd)
        sys.argv[:] = [rank.__file__, str(task_file)]
        before = set(sys.modules)
        code = rank.main(task_file, lambda: _prepared(gate))
        if code == 0:
            _tell_imports(RankFiles(task_file.parent, number), before)
    except BaseException:
        traceback.print_exc()
    rank.leave(code)


def _prepared(gate: int) -> None:
    warm_bindings.bind_anew()
    if not os.read(gate, 1):
        os._exit(1)  # nobody is left who could let us in
    os.close(gate)


def become(environ: Mapping[str, str], cwd: str) -> None:
    """Take on an environment as if the process had started in it, with entropy of its own."""
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
    """Have torch read anew what it read of the environment when it was imported."""
    import torch
    from torch._C._distributed_c10d import set_debug_level_from_env

    set_debug_level_from_env()
    threads = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    if threads.isdigit() and int(threads):
        torch.set_num_threads(int(threads))
    names = ("TORCH_LOGS", "TORCH_LOGS_OUT", "TORCH_LOGS_FORMAT", "TORCH_TRACE")
    if any(before.get(name) != os.environ.get(name) for name in names):
        import torch._logging._internal as logs

        logs._init_logs()  # torch offers no public way to read them again


def _shuffle() -> None:
    """Give every generator its own seed, as each fresh process has; programs may seed over it."""
    import torch

    random.seed()
    torch.default_generator.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def _tell_imports(files: RankFiles, before: set[str]) -> None:
    """Leave the names of installed modules that the task imported, for the next preload."""
    names = warm_learn.installed(name for name in list(sys.modules) if name not in before)
    if names:
        write_whole(files.imported, json.dumps(names).encode())
