"""Ctrl-C or SIGKILL of pytest also ends the processes of its ranks."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from functools import partial
from pathlib import Path

import pytest

from tests.support.end_to_end import inner_pytest

SOURCE = """
import os
import pytest
from endless import train
from pytest_trainsafe import assert_trainsafe

@pytest.mark.trainsafe(train, dp=2)
def test_endless(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)
"""

PROGRAM = """
import os
import time

def train(ctx, pipe={pipe!r}):
    with open(pipe, "w") as file:
        file.write(f"{{os.getpid()}}\\n")
    while True:
        time.sleep(0.1)
"""


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_ranks_end_when_pytest_is_interrupted_or_killed(
    tmp_path: Path, ending: signal.Signals
) -> None:
    pipe = tmp_path / "pids"
    os.mkfifo(pipe)
    (tmp_path / "endless.py").write_text(PROGRAM.format(pipe=str(pipe)))
    command = inner_pytest.command(tmp_path, SOURCE, "--trainsafe-timeout=600")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    # A shell without job control has its background processes ignore Ctrl-C.
    default_sigint = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    runner = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=default_sigint,
    )
    try:
        first = _pid(reader)
        rank = os.pidfd_open(first)
        runner.send_signal(ending)
        runner.communicate(timeout=60)
    finally:  # an endless run would occupy the cores that ranks of other tests wait for
        runner.kill()
        runner.wait()

    # A pidfd is readable once its process is gone.
    assert select.select([rank], [], [], 30)[0], f"rank {first} outlived pytest"


def _pid(reader: int) -> int:
    text = b""
    while b"\n" not in text:
        assert select.select([reader], [], [], 120)[0], "no rank began"
        text += os.read(reader, 100)
    return int(text.split()[0])
