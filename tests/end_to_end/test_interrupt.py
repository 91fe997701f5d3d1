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


#: As pytest-xdist in a worker whose controller was killed, but at once: nothing can be reported.
FAILING = """
import pytest

def pytest_runtest_logreport(report):
    if report.when == "call":
        raise OSError("cannot send")

@pytest.hookimpl(wrapper=True)
def pytest_sessionfinish():
    yield
    raise OSError("cannot send")
"""

#: Its test ends while its ranks train.
ORPHANED = """
import os
import signal
import threading
import pytest
from endless import train
from pytest_trainsafe import assert_trainsafe

@pytest.mark.trainsafe(train, dp=2)
def test_endless(candidate_trace, reference_trace):
    traces = candidate_trace, reference_trace
    threading.Thread(target=assert_trainsafe, args=traces, daemon=True).start()
    open({known!r}).readline()
    os.kill(os.getppid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_ranks_end_when_pytest_is_interrupted_or_killed(
    tmp_path: Path, ending: signal.Signals
) -> None:
    first, rank = _started(tmp_path, SOURCE, ending=ending)

    # A pidfd is readable once its process is gone.
    assert select.select([rank], [], [], 30)[0], f"rank {first} outlived pytest"


def test_ranks_end_when_a_worker_can_report_nothing_after_its_controller_was_killed(
    tmp_path: Path,
) -> None:
    (tmp_path / "conftest.py").write_text(FAILING)
    source = ORPHANED.format(known=str(tmp_path / "known"))

    # A fork server would end its ranks with the controller.
    first, rank = _started(tmp_path, source, "-n1", "--trainsafe-launcher=torchrun")

    assert select.select([rank], [], [], 30)[0], f"rank {first} outlived pytest"


def _started(
    folder: Path, source: str, *options: str, ending: signal.Signals | None = None
) -> tuple[int, int]:
    """The pid and a pidfd of a rank of a test run that has ended, by this signal or by itself."""
    pipe = folder / "pids"
    os.mkfifo(pipe)
    os.mkfifo(folder / "known")
    (folder / "endless.py").write_text(PROGRAM.format(pipe=str(pipe)))
    command = inner_pytest.command(folder, source, "--trainsafe-timeout=600", *options)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    # A shell without job control has its background processes ignore Ctrl-C.
    default_sigint = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    runner = subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=default_sigint,
    )
    try:
        first = _pid(reader)
        rank = os.pidfd_open(first)
        if ending is not None:
            runner.send_signal(ending)
        else:  # the test waits until its rank is known here
            (folder / "known").write_text("known\n")
        runner.communicate(timeout=60)
    finally:  # an endless run would occupy the cores that ranks of other tests wait for
        runner.kill()
        runner.wait()
    return first, rank


def _pid(reader: int) -> int:
    text = b""
    while b"\n" not in text:
        assert select.select([reader], [], [], 120)[0], "no rank began"
        text += os.read(reader, 100)
    return int(text.split()[0])
