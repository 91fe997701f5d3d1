"""Every fault of the matrix is named with its rank, ends in time, and leaves nothing behind."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_trainsafe.launch import Launcher
from pytest_trainsafe.launch.torchrun.launcher import TorchrunLauncher
from tests.support.launch.fault_catalogue import DOCS, FAULTS, Fault, written
from tests.support.launch.fault_checks import all_at_once, check, name, run

QUICK = [fault for fault in FAULTS if fault.ends == "at once" or "lose" in fault.program]
#: Their ranks wait and use no CPU, so that all groups may run at once.
SLOW = [fault for fault in FAULTS if fault not in QUICK]
TORCHRUN = [fault for fault in FAULTS if fault.torchrun]


@pytest.mark.parametrize("fault", QUICK, ids=name)
def test_a_rank_that_fails_is_named_at_once(fault: Fault, warm: Launcher, tmp_path: Path) -> None:
    check(fault, run(fault, warm, tmp_path), "warm", tmp_path)


def test_hanging_groups_are_ended_and_slow_groups_are_not(warm: Launcher, tmp_path: Path) -> None:
    wrong = all_at_once([(fault, warm, "warm") for fault in SLOW], tmp_path)
    assert not wrong, "\n".join(wrong)


def test_faults_are_also_reported_under_torchrun(tmp_path: Path) -> None:
    launcher = TorchrunLauncher(grace=2.0)
    # torchrun's agent is a process in between
    rows = [
        replace(fault, args=(*fault.args, 2)) if fault.program == "signal_reaper" else fault
        for fault in TORCHRUN
    ]
    wrong = all_at_once([(fault, launcher, "torchrun") for fault in rows], tmp_path)
    assert not wrong, "\n".join(wrong)


def test_the_matrix_has_every_ending_and_a_suspended_rank_under_torchrun() -> None:
    assert {fault.ends for fault in SLOW} == {"after seconds", "timeout", "normally"}
    assert any(fault.args == (signal.SIGSTOP,) for fault in TORCHRUN)


def test_the_documentation_shows_the_matrix() -> None:
    page = DOCS.read_text()
    assert page == written(page), "run python tests/support/launch/fault_catalogue.py"
