"""No process outlives its group, however the group or the test run ends."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from pytest_trainsafe.launch import raise_for_failure
from tests.support.launch import programs
from tests.support.launch.programs import Launch


def test_grandchildren_end_with_their_group(launch: Launch, tmp_path: Path) -> None:
    """Also the one in a session of its own, which no process group signal reaches."""
    notes = tmp_path / "pids"
    result = launch(programs.spawn_grandchildren, str(notes), "return")
    raise_for_failure(result)
    pids = [int(line) for line in notes.read_text().split()]
    assert len(pids) == 6
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []
    assert len(result.leftovers) == 4


LAUNCH = """
import sys
from pathlib import Path
from pytest_trainsafe.launch import Task, TorchrunLauncher
program = "tests.support.launch.programs:spawn_grandchildren"  # whose import imports torch
task = Task.of(program, sys.argv[1], "sit", world_size=1)
TorchrunLauncher().run(task, timeout=600, workdir=Path(sys.argv[2]))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_no_process_outlives_a_test_run_that_is_killed_or_interrupted(
    number: signal.Signals, tmp_path: Path
) -> None:
    pipe = tmp_path / "pids"
    os.mkfifo(pipe)
    notes = os.open(pipe, os.O_RDWR)
    command = [sys.executable, "-c", LAUNCH, str(pipe), str(tmp_path)]
    # A shell without job control has its background processes ignore Ctrl-C.
    restore_sigint = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, preexec_fn=restore_sigint
    ) as parent:
        assert select.select([notes], [], [], 60)[0], "the rank did not start its children"
        fds = [os.pidfd_open(int(pid)) for pid in os.read(notes, 4096).split()]
        assert len(fds) == 3
        parent.send_signal(number)
        _, error = parent.communicate(timeout=60)
    living = set(fds)
    while living and (ended := select.select(list(living), [], [], 20)[0]):
        living -= set(ended)
    for fd in [*fds, notes]:
        os.close(fd)
    assert not living
    assert parent.returncode == -number
    assert ("KeyboardInterrupt" in error) == (number == signal.SIGINT)
