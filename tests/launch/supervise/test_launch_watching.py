"""Which processes are idle, and which a signal has suspended."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_trainsafe.launch.supervise.watching import Idle, Suspended, is_suspended, resume

_ATTACH, _DETACH = 16, 17  # of ptrace(2)


@pytest.fixture
def child() -> Iterator[int]:
    with subprocess.Popen(["sleep", "600"]) as process:
        while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "S":
            assert process.poll() is None
        yield process.pid
        process.kill()


def suspend(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    os.waitpid(pid, os.WUNTRACED)


def test_sigstop_suspends_a_process_and_resume_continues_it(child: int) -> None:
    assert not is_suspended(child)
    suspend(child)
    assert is_suspended(child)
    resume(child)
    os.waitpid(child, os.WCONTINUED)
    assert not is_suspended(child)


def test_a_process_that_a_debugger_stopped_does_not_count_as_suspended(child: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    if libc.ptrace(_ATTACH, child, None, None):
        pytest.skip(f"ptrace is not allowed here: {os.strerror(ctypes.get_errno())}")
    os.waitpid(child, 0)
    try:
        assert not is_suspended(child)
    finally:
        libc.ptrace(_DETACH, child, None, None)


def test_a_process_counts_as_suspended_after_several_observations(child: int) -> None:
    watched = Suspended()
    suspend(child)
    # Hours may pass between two observations: this process may have been suspended as well.
    found = [bool(watched.update([child], 3600.0 * number)) for number in range(12)]
    assert found == [False] * 8 + [True] * 4
    os.kill(child, signal.SIGCONT)
    os.waitpid(child, os.WCONTINUED)
    assert watched.update([child], 1e6) == set()


def test_pid_0_is_not_suspended() -> None:
    assert not is_suspended(0)
    resume(0)


def idle_seconds(pid: int, wait: Iterator[None]) -> float:
    """The seconds that `Idle` counts between two observations, with times three seconds apart."""
    idle, ranks = Idle(), [SimpleNamespace(pid=pid)]
    idle.update(ranks, 0.0)
    next(wait, None)
    idle.update(ranks, 3.0)
    return idle.seconds


def test_a_process_that_sleeps_is_idle(child: int) -> None:
    assert idle_seconds(child, iter([])) == 3.0


def test_ranks_are_not_idle_before_all_their_processes_have_started(child: int) -> None:
    """A group with a collective mismatch is ended after some idle seconds, and not earlier."""
    idle, ranks = Idle(), [SimpleNamespace(pid=0), SimpleNamespace(pid=0)]
    idle.update(ranks, 0.0)
    ranks[0].pid = child
    idle.update(ranks, 5.0)
    assert idle.seconds == 0.0
    ranks[1].pid = child
    idle.update(ranks, 9.0)
    assert idle.seconds == 0.0
    idle.update(ranks, 12.0)
    assert idle.seconds == 3.0


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="needs /proc/*/schedstat")
def test_a_process_that_waits_for_a_cpu_is_not_idle() -> None:
    cpu = min(os.sched_getaffinity(0))

    def busy(policy: int) -> subprocess.Popen[bytes]:
        def confine() -> None:
            os.sched_setaffinity(0, {cpu})
            os.sched_setscheduler(0, policy, os.sched_param(0))

        spin = "print(flush=True)\nwhile True: pass"
        command = [sys.executable, "-c", spin]
        return subprocess.Popen(command, preexec_fn=confine, stdout=subprocess.PIPE)

    with busy(os.SCHED_IDLE) as starved:
        assert starved.stdout is not None
        starved.stdout.readline()
        with busy(os.SCHED_OTHER) as greedy:

            def until_greedy_has_run() -> Iterator[None]:
                while cpu_ticks(greedy.pid) < os.sysconf("SC_CLK_TCK"):
                    pass
                yield

            before = cpu_ticks(starved.pid)
            seconds = idle_seconds(starved.pid, until_greedy_has_run())
            used = cpu_ticks(starved.pid) - before
            greedy.kill()
        starved.kill()
    assert used < 17, "the process was not starved"
    assert seconds == 0.0


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
