"""A run that is interrupted or killed leaves nothing beyond the start of the next run."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

MODEL = """
import os, signal
import torch


def train(ctx):
    # Data loader workers: the rank has sockets of multiprocessing, and their draws are recorded.
    loader = torch.utils.data.DataLoader(torch.arange(8), num_workers=1)
    iterator = iter(loader)
    next(iterator)
    wait()


def wait():
    with open(os.environ["STARTED"], "w") as pipe:
        pipe.write(f"{os.getpid()}\\n")
    signal.pause()


def nothing():
    pass
"""

TESTS = """
import model, pytest
from pytest_trainsafe import assert_trainsafe

# With and without data loader workers, in different workers of pytest-xdist if there are two.
@pytest.mark.trainsafe(model.train, dp=[1])
def test_trained(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)

def test_launched(torchrun_group):
    torchrun_group.run(model.wait, world_size=1)
"""

NEXT = """
import model

def test_next(torchrun_group):
    torchrun_group.run(model.nothing, world_size=1)
"""


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder for temporary files, with a path that is short enough for sockets."""
    folder = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


@contextlib.contextmanager
def running(
    folder: Path, temporary: Path, name: str, *options: str
) -> Iterator[subprocess.Popen[bytes]]:
    # The path of a rank's own folder is too long for a socket.
    basetemp = temporary / ("long" * 20)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", name, *options]
    (folder / "pytest.ini").write_text("[pytest]")
    with subprocess.Popen(
        [*command, f"--basetemp={basetemp}"],
        cwd=folder,
        env={
            **{key: value for key, value in os.environ.items() if key != "XDG_RUNTIME_DIR"},
            "TMPDIR": str(temporary),
            "STARTED": str(folder / "started"),
            "PYTEST_ADDOPTS": "-p no:hypothesispytest -p no:syrupy",
        },
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        # A shell without job control has its background processes ignore Ctrl-C.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    ) as started:
        try:
            yield started
        finally:
            if started.poll() is None:
                os.killpg(started.pid, signal.SIGKILL)


def ours(temporary: Path) -> set[str]:
    """The names that runs have left; the folder of the leases and its lock stay for all runs."""
    leases = temporary / f"pytest-trainsafe-{os.geteuid()}"
    left = [*temporary.glob("trainsafe-*"), *temporary.glob("pymp-*"), *leases.glob("[!g]*")]
    return {path.name for path in left}


@pytest.mark.parametrize(
    ("number", "workers"),
    [
        (signal.SIGKILL, 1),
        pytest.param(signal.SIGKILL, 0, marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, 2, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, 2, marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, 2, marks=pytest.mark.slow),
    ],
)
def test_nothing_of_an_ended_run_outlives_the_start_of_the_next(
    tmp_path: Path, temporary: Path, number: signal.Signals, workers: int
) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "test_run.py").write_text(TESTS)
    (tmp_path / "test_next.py").write_text(NEXT)
    os.mkfifo(tmp_path / "started")
    pipe = os.open(tmp_path / "started", os.O_RDWR)
    pids: list[bytes] = []
    options = ("-n", str(workers)) if workers else ()
    with running(tmp_path, temporary, "test_run.py", *options) as ended:
        while len(pids) < max(1, workers):
            assert select.select([pipe], [], [], 100)[0], "no rank has started"
            pids += os.read(pipe, 4096).split()
        ranks = [os.pidfd_open(int(pid)) for pid in pids]
        during = ours(temporary)
        if number == signal.SIGINT:  # a terminal sends it to the whole group
            os.killpg(ended.pid, number)
        else:
            os.kill(ended.pid, number)
        ended.communicate(timeout=60)
    for rank in ranks:
        assert select.select([rank], [], [], 30)[0], "a rank outlives its run"
        os.close(rank)
    os.close(pipe)

    with running(tmp_path, temporary, "test_next.py") as following:
        output = following.communicate(timeout=100)[0]

    assert following.returncode == 0, output.decode()
    assert {name.rpartition(".")[2] for name in during} >= {"held", "used"}
    assert ours(temporary) == set()
