"""A process that a signal has suspended is told from one that a debugger holds."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from pytest_trainsafe.launch.watching import Suspended, is_suspended, resume

_ATTACH, _DETACH = 16, 17  # of ptrace(2)


@pytest.fixture
def child() -> Iterator[int]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process.pid
        process.kill()


def suspend(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    os.waitpid(pid, os.WUNTRACED)


def test_a_signal_suspends_and_resume_lets_go_on(child: int) -> None:
    assert not is_suspended(child)
    suspend(child)
    assert is_suspended(child)
    resume(child)
    os.waitpid(child, os.WCONTINUED)
    assert not is_suspended(child)


def test_what_a_debugger_holds_is_left_alone(child: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    if libc.ptrace(_ATTACH, child, None, None):
        pytest.skip(f"ptrace is not allowed here: {os.strerror(ctypes.get_errno())}")
    os.waitpid(child, 0)
    try:
        assert not is_suspended(child)
    finally:
        libc.ptrace(_DETACH, child, None, None)


def test_a_process_counts_as_suspended_after_some_looks(child: int) -> None:
    watched = Suspended()
    suspend(child)
    # Hours may lie between two looks: this process may have been suspended as well.
    found = [bool(watched.look([child], 3600.0 * number)) for number in range(12)]
    assert found == [False] * 8 + [True] * 4
    os.kill(child, signal.SIGCONT)
    os.waitpid(child, os.WCONTINUED)
    assert watched.look([child], 1e6) == set()


def test_no_process_is_not_suspended() -> None:
    assert not is_suspended(0)
    resume(0)
