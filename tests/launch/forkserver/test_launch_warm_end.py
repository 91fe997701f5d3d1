"""No process outlives a pytest run that used the fork server, however the run ends."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

LAUNCH = """
import os, sys, threading
from pathlib import Path
from pytest_trainsafe.launch import Task, WarmLauncher, WarmServer
from pytest_trainsafe.launch.forkserver.start import status
server = WarmServer.start(Path(sys.argv[2]))
note = os.open(sys.argv[1], os.O_WRONLY)
os.write(note, f"{server._keeper.pid}\\n{status(server.address)['server']}\\n".encode())
program = "tests.support.launch.programs:spawn_grandchildren"  # whose import imports torch
task = Task.of(program, sys.argv[1], "sit", world_size=1)
WarmLauncher(server.address).run(task, timeout=600, workdir=Path(sys.argv[2]))
"""


def test_no_process_outlives_a_pytest_run_that_is_killed(tmp_path: Path) -> None:
    pipe = tmp_path / "pids"
    os.mkfifo(pipe)
    notes = os.open(pipe, os.O_RDWR)
    command = [sys.executable, "-c", LAUNCH, str(pipe), str(tmp_path)]
    with subprocess.Popen(command) as parent:
        pids: list[bytes] = []
        while len(pids) < 5:  # the keeper, the server, the rank and its two children
            assert select.select([notes], [], [], 60)[0], "the rank did not start its children"
            pids += os.read(notes, 4096).split()
        fds = [os.pidfd_open(int(pid)) for pid in pids]
        parent.kill()
    living = set(fds)
    while living and (ended := select.select(list(living), [], [], 20)[0]):
        living -= set(ended)
    for fd in [*fds, notes]:
        os.close(fd)
    assert not living
    assert parent.returncode == -signal.SIGKILL
    assert list(tmp_path.glob("trainsafe-*")) == []
