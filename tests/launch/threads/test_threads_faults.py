"""The faults of the matrix are named in the same words if the ranks are threads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_trainsafe.launch import GroupResult, Task, ThreadsLauncher, WarmServer
from pytest_trainsafe.launch.forkserver.start import status
from tests.support.launch import programs
from tests.support.launch.fault_catalogue import FAULTS, Fault
from tests.support.launch.fault_checks import all_at_once, check, left_behind, name, run

#: What happens to a process happens to all ranks of it, and only the thread of a rank may send.
OTHERWISE = ("hold_the_gil", "send_from_a_thread", "stop_and_continue")
SUSPENDED = [fault for fault in FAULTS if fault.ends == "after seconds" and not fault.says]

ROWS = [each for each in FAULTS if each.program not in OTHERWISE and each not in SUSPENDED]
#: Their ranks wait for seconds and use no CPU, so that all groups may run at once.
SLOW = [
    each
    for each in FAULTS
    if each in ROWS
    and (each.ends == "timeout" or "slow" in each.program or each.args == ("is killed",))
]


@pytest.fixture(autouse=True)
def ready(warm_server: WarmServer) -> None:
    """Wait until the fork server can fork."""
    status(warm_server.address)


@pytest.mark.parametrize("fault", [each for each in ROWS if each not in SLOW], ids=name)
def test_a_fault_is_named(fault: Fault, threads: ThreadsLauncher, tmp_path: Path) -> None:
    """In the words that are used for processes."""
    result = run(fault, threads, tmp_path)
    check(fault, result, "threads", tmp_path)
    if fault.ends == "after seconds":
        # Processes must be idle for three seconds before anybody compares their calls.
        assert result.stuck
        assert result.seconds < 3


def test_hanging_groups_are_ended_and_slow_groups_are_not(
    threads: ThreadsLauncher, tmp_path: Path
) -> None:
    """Also one whose data loader torch looks after every five seconds."""
    assert {fault.ends for fault in SLOW} == {"at once", "timeout", "normally"}
    wrong = all_at_once([(fault, threads, "threads") for fault in SLOW], tmp_path)
    assert not wrong, "\n".join(wrong)


def run_threads(
    program: Callable[[], object], threads: ThreadsLauncher, folder: Path, world_size: int = 2
) -> GroupResult:
    """Run a program of the launch tests in threads."""
    task = Task.of(program, world_size=world_size)
    return threads.run(task, timeout=60, workdir=folder)


def test_correct_use_of_every_collective_passes(threads: ThreadsLauncher, tmp_path: Path) -> None:
    """Those of the tests of processes."""
    result = run_threads(programs.every_collective, threads, tmp_path, 4)
    assert result.values == [None] * 4


def test_the_first_disagreement_ends_the_group(threads: ThreadsLauncher, tmp_path: Path) -> None:
    """In words of the ledgers, which gloo lets pass."""
    result = run_threads(programs.silent_mismatches, threads, tmp_path)
    assert [rank.status for rank in result.ranks] == ["hung", "hung"]
    assert result.stuck
    assert "differs (reduction): rank 0 all_reduce(SUM) of 4 float32" in result.mismatches[0]


def test_a_collective_that_cpp_issues_is_compared(threads: ThreadsLauncher, tmp_path: Path) -> None:
    """DDP broadcasts its parameters, whose dtypes differ."""
    result = run_threads(programs.ddp_of_two_dtypes, threads, tmp_path)
    assert result.stuck
    assert "differs (dtype): rank 0 broadcast" in result.mismatches[0]


def test_a_rank_that_never_hands_over_is_ended_at_the_timeout(
    threads: ThreadsLauncher, tmp_path: Path
) -> None:
    """Even if it holds Python's lock, so that no thread can say where it is."""
    (fault,) = (each for each in FAULTS if each.program == "hold_the_gil")
    result = run(fault, threads, tmp_path)
    assert [rank.status for rank in result.ranks] == ["hung", "hung"]
    assert left_behind(tmp_path) == []
