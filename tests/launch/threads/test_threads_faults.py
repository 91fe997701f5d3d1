"""The faults of the matrix are named in the same words if the ranks are threads."""

from __future__ import annotations

from pathlib import Path

import pytest
from fault_catalogue import FAULTS, Fault
from fault_checks import check, name, run

from pytest_trainsafe.launch import ThreadsLauncher, WarmServer
from pytest_trainsafe.launch.forkserver.start import status

#: What happens to a process happens to all ranks of it, and only the thread of a rank may send.
OTHERWISE = ("hold_the_gil", "send_from_a_thread", "stop_and_continue")
SUSPENDED = [fault for fault in FAULTS if fault.ends == "after seconds" and not fault.says]

ROWS = [each for each in FAULTS if each.program not in OTHERWISE and each not in SUSPENDED]


@pytest.fixture(autouse=True)
def ready(warm_server: WarmServer) -> None:
    """Wait until the fork server can fork."""
    status(warm_server.address)


@pytest.mark.parametrize("fault", ROWS, ids=name)
def test_a_fault_is_named(fault: Fault, threads: ThreadsLauncher, tmp_path: Path) -> None:
    """In the words that are used for processes."""
    result = run(fault, threads, tmp_path)
    check(fault, result, "threads", tmp_path)
    if fault.ends == "after seconds":
        # Processes must be idle for three seconds before anybody compares their calls.
        assert result.stuck
        assert result.seconds < 3
