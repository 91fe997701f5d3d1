"""`breakpoint()` in a rank: an error that says what to do, or a debugger on pytest's terminal."""

from __future__ import annotations

import os
import select
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pytest_trainsafe.launch import Task, WarmLauncher
from pytest_trainsafe.launch.forkserver import launcher as warm_launcher
from tests.support.launch import breakpoint_programs, in_terminal

TESTS = """
import pytest
from tests.support.launch.breakpoint_programs import train, walk
from pytest_trainsafe import assert_trainsafe


@pytest.mark.trainsafe(train, dp=2, dtype=["float64"])
def test_train(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


def test_walk(torchrun_group):
    assert torchrun_group.run(walk, world_size=2) == [40, 41]
"""


def debugging(folder: Path, *options: str) -> in_terminal.Terminal:
    """pytest in a terminal of its own, with rank 1 to be debugged."""
    (folder / "test_it.py").write_text(TESTS)
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "--trainsafe-debug", "1", *options]
    return in_terminal.Terminal(command, folder)


def wait_for_a_key(process: int) -> None:
    """Waits until a process that shows readline's prompt sleeps.

    Python's readline misses a signal between its prompt and its wait for a key.
    """
    while Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "S":
        os.sched_yield()


@pytest.mark.usefixtures("shared_fork_server")
@pytest.mark.parametrize("launcher", ["warm", pytest.param("torchrun", marks=pytest.mark.slow)])
def test_a_rank_debugs_on_the_terminal_and_its_test_goes_on(tmp_path: Path, launcher: str) -> None:
    with debugging(tmp_path, "-k", "train", f"--trainsafe-launcher={launcher}") as terminal:
        terminal.expect("rank 1 of 2 (float64) is in its debugger")
        terminal.expect("-> answer = 40 + rank")
        terminal.expect("(Pdb) ")
        terminal.type("p 6 * 7, answered\n")
        terminal.expect("*** NameError")
        terminal.expect("(Pdb) ")
        terminal.type("import os; print('process', os.getpid())\n")
        terminal.expect("\r\nprocess ")
        number = int(terminal.expect("\r\n"))
        terminal.expect("(Pdb) ")
        wait_for_a_key(number)
        terminal.type("garbage\x03")  # Ctrl-C
        terminal.expect("--KeyboardInterrupt--")
        terminal.expect("(Pdb) ")
        terminal.type("n\n")
        terminal.expect("(Pdb) ")
        terminal.type("p answer\n")
        terminal.expect("\n41\r\n")
        terminal.expect("(Pdb) ")
        terminal.type("c\n")
        terminal.expect("1 passed")

        assert terminal.wait() == 0
        assert not terminal.changed_settings()
        assert terminal.shown.count("is in its debugger") == 1  # neither rank 0 nor the reference
        assert "\n[rank 0, float64] hello from 0 of 2\r\n" in terminal.shown
        assert "\n[rank 0, reference, float64] hello from 0 of 1\r\n" in terminal.shown
        # at the breakpoint it was shown already
        assert terminal.shown.index("[rank 1, float64] hello from 1 of 2") < terminal.shown.index(
            "(Pdb)"
        )


@pytest.mark.usefixtures("shared_fork_server")
def test_leaving_the_debugger_with_q_fails_the_test(tmp_path: Path) -> None:
    with debugging(tmp_path, "-k", "walk") as terminal:
        terminal.expect("(Pdb) ")
        terminal.type("q\n")
        terminal.expect("the user ended the debugger of rank 1 of 2 (q) at ")
        terminal.expect("1 failed")

        assert terminal.wait() == 1
        assert "bdb.py" not in terminal.shown


@pytest.mark.usefixtures("shared_fork_server")
def test_ctrl_c_twice_ends_pytest_and_leaves_nothing(tmp_path: Path) -> None:
    with debugging(tmp_path, "-k", "walk") as terminal:
        terminal.expect("(Pdb) ")
        terminal.type("import os; print('process', os.getpid())\n")
        terminal.expect("\r\nprocess ")
        number = int(terminal.expect("\r\n"))
        rank = os.pidfd_open(number)
        terminal.expect("(Pdb) ")
        wait_for_a_key(number)
        terminal.type("\x03")
        terminal.expect("--KeyboardInterrupt--")
        # on a busy machine, two keys may be more than two seconds apart
        while "KeyboardInterrupt !" not in terminal.shown:
            terminal.type("\x03")
            terminal.expect("KeyboardInterrupt")
            terminal.expect("\r\n")

        assert terminal.wait() == pytest.ExitCode.INTERRUPTED
        assert select.select([rank], [], [], 30)[0], "the rank outlived pytest"
        assert not terminal.changed_settings()


@pytest.mark.usefixtures("shared_fork_server")
def test_the_end_of_a_rank_gives_the_terminal_back(tmp_path: Path) -> None:
    with debugging(tmp_path, "-k", "walk") as terminal:
        terminal.expect("(Pdb) ")
        terminal.type("import os; os.kill(os.getpid(), 9)\n")
        terminal.expect("rank 1 of 2 was killed by SIGKILL")
        terminal.expect("1 failed")

        assert terminal.wait() == 1
        assert not terminal.changed_settings()


def test_without_the_option_a_breakpoint_says_what_to_do(
    warm: WarmLauncher, tmp_path: Path
) -> None:
    for program, called in (
        (breakpoint_programs.walk, "rank 1 called breakpoint() at "),
        (breakpoint_programs.trace, "rank 1 started a debugger without a terminal at "),
    ):
        task = Task.of(program, world_size=2)
        rank = warm.run(task, timeout=60, workdir=tmp_path).ranks[1]

        assert rank.error_type == "BreakpointError"
        assert rank.error.startswith(f"{called}{breakpoint_programs.__file__}:")
        assert (
            "run pytest with --trainsafe-debug 1 to debug rank 1 of the candidate in the terminal"
        ) in rank.error


def test_ranks_that_nobody_debugs_ignore_breakpoints(warm: WarmLauncher, tmp_path: Path) -> None:
    for debug in (-1, 2):
        plain = Task.of(breakpoint_programs.walk, world_size=2)
        task = msgspec.structs.replace(plain, debug=debug)

        assert warm.run(task, timeout=60, workdir=tmp_path).values == [40, 41]


def test_python_can_turn_breakpoints_off(warm: WarmLauncher, tmp_path: Path) -> None:
    task = Task.of(breakpoint_programs.walk_on, world_size=2)

    assert warm.run(task, timeout=60, workdir=tmp_path).values == [40, 41]


class Attended:
    """An Attendance in whose group a rank is in its debugger for some looks of the supervisor."""

    def __init__(self, looks: int) -> None:
        self.looks = looks
        self.ended = threading.Event()

    def in_debugger(self) -> bool:
        self.looks -= 1
        return self.looks >= 0

    def end(self) -> None:
        self.ended.set()


@pytest.mark.parametrize(("looks", "status"), [(0, "hung"), (10**9, "ok")])
def test_time_limits_and_the_search_for_deadlocks_stop_in_a_debugger(
    warm: WarmLauncher, tmp_path: Path, monkeypatch: Any, looks: int, status: str
) -> None:
    attended = Attended(looks)
    monkeypatch.setattr(warm_launcher, "attend", lambda *_: attended)
    task = Task.of(breakpoint_programs.work_for_seconds, 3.0, world_size=1)

    result = warm.run(task, timeout=0.5, workdir=tmp_path)

    assert result.ranks[0].status == status
    assert attended.ended.is_set()


def test_the_terminal_can_be_asked_for_before_the_first_rank_runs(
    warm: WarmLauncher, tmp_path: Path, monkeypatch: Any
) -> None:
    order: list[str] = []
    release = warm_launcher.Forked.release

    def attend(*_: object) -> Attended:
        order.append("attend")
        return Attended(0)

    def released(processes: warm_launcher.Forked) -> None:
        order.append("release")
        release(processes)

    monkeypatch.setattr(warm_launcher, "attend", attend)
    monkeypatch.setattr(warm_launcher.Forked, "release", released)

    warm.run(Task.of(breakpoint_programs.walk_on, world_size=1), timeout=60, workdir=tmp_path)

    assert order == ["attend", "release"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["-n", "2"], "needs the terminal, which workers of pytest-xdist do not have"),
        ([], "needs a terminal, but standard input is none"),
    ],
)
def test_the_option_needs_a_terminal(
    pytester: pytest.Pytester, options: list[str], why: str
) -> None:
    pytester.makepyfile("def test_it(): pass")
    result = pytester.run(
        *(sys.executable, "-m", "pytest", "--trainsafe-debug=1", *options), stdin=b""
    )

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: --trainsafe-debug 1 {why}*"])


@pytest.mark.parametrize("value", ["-1", "one", "0x1"])
def test_the_option_takes_the_number_of_a_rank(pytester: pytest.Pytester, value: str) -> None:
    result = pytester.runpytest(f"--trainsafe-debug={value}")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: --trainsafe-debug takes the number of a rank*{value}*"])
