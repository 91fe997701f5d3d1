"""Live lines show the running Points below pytest's own output, which they do not change."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pytest_trainsafe.report.run import live
from pytest_trainsafe.report.run.live import Live, frame, point_lines, rendered
from pytest_trainsafe.runs.progress.board import TRAINING, WAITING, Board, Status

TEST = """
import os
import time

import pytest
from pytest_trainsafe.report.run import live
from pytest_trainsafe.runs.progress.board import TRAINING, Board
from pytest_trainsafe.runs.progress.shared import publish

live.FRAME = 0.01


@pytest.mark.trainsafe("program:train", tp=[1, 2])
def test_it(trainsafe, request):
    board = request.config.stash[live.BOARD] = Board()
    publish(request.config, board)
    with board.running(str(trainsafe.point), "float64 run", trainsafe.point.world_size) as enter:
        enter(TRAINING)
        deadline = time.monotonic() + 60
        while not os.path.exists(f"seen-{trainsafe.point}"):
            assert time.monotonic() < deadline, "nobody saw the line"
            time.sleep(0.01)
"""


class Screen:
    """An emulated terminal, which reads text, newlines and the escape sequences of `frame`."""

    def __init__(self, columns: int = 80, rows: int = 24) -> None:
        self.columns, self.rows = columns, rows
        self.lines = [""]
        self.row = self.column = 0

    def write(self, text: str) -> Screen:
        for piece in re.findall(r"\x1b\[\d*[A-Za-z]|[\r\n]|[^\r\n\x1b]+", text):
            if piece == "\n":
                self.row, self.column = self.row + 1, 0
                self.lines += [""] * (self.row + 1 - len(self.lines))
            elif piece == "\r":
                self.column = 0
            elif piece.startswith("\x1b"):
                count, kind = int(piece[2:-1] or 0), piece[-1]
                if kind == "A":
                    self.row = max(self.row - (count or 1), len(self.lines) - self.rows, 0)
                elif kind == "C":
                    self.column += count or 1
                elif kind == "J":
                    self.lines[self.row] = self.lines[self.row][: self.column]
                    del self.lines[self.row + 1 :]
            else:
                line = self.lines[self.row].ljust(self.column)
                self.lines[self.row] = (
                    line[: self.column] + piece + line[self.column + len(piece) :]
                )
                self.column += len(piece)
                assert self.column <= self.columns, "a line wraps"
        return self

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.lines).rstrip()


def row(point: str, stage: str = TRAINING, since: float = 0.0, ranks: int = 2) -> Status:
    return Status(point, "float64 run", ranks, stage, since)


def test_a_point_has_one_line_for_all_of_its_runs() -> None:
    rows = [row("tp=2", WAITING, 1.0), row("tp=2", TRAINING, 4.0), row("tp=1", WAITING, 2.0, 1)]

    assert point_lines(rows, 10.0) == [
        ("tp=2", "float64 run trains, 1 more", "2 ranks", "6 s"),
        ("tp=1", "float64 run waits for free ranks", "1 rank", "8 s"),
    ]


def test_a_waiting_point_names_the_other_test_runs_that_it_waits_for() -> None:
    waits = Status("tp=2", "float64 run", 2, WAITING, 1.0, "process 42 in /a")

    (line,) = point_lines([waits, row("tp=2", WAITING)], 10.0)

    assert line[1] == "float64 run waits for free ranks of process 42 in /a, 1 more"


def test_the_board_adds_up_the_time_in_which_runs_wait_for_other_test_runs() -> None:
    now = 0.0
    board = Board(clock=lambda: now)
    with board.running("tp=1", "float64 run", 1) as one, board.running("tp=2", "run", 2) as two:
        one(WAITING)
        now = 3.0
        one(WAITING, "process 42 in /a")
        two(WAITING, "process 42 in /a")
        now = 5.0
        one(TRAINING)
        now = 6.0
        assert board.held_up() == 3.0
        two(TRAINING)
        now = 9.0
        assert board.held_up() == 3.0
        two(WAITING, "process 42 in /a")
        now = 10.0
    now = 12.0
    assert board.held_up() == 4.0


def test_points_beyond_the_maximum_number_of_lines_are_counted() -> None:
    lines = point_lines([row(f"tp={n}") for n in range(live.MAX_LINES + 3)], 0.0)

    assert len(lines) == live.MAX_LINES + 1
    assert lines[-1][0] == "and 3 more"


@pytest.mark.parametrize("width", [20, 79])
def test_lines_fit_the_terminal_and_are_coloured_only_if_asked(width: int) -> None:
    lines = point_lines([row("axis=" + "v" * 100 + "\x1b[31m")], 0.0)

    made = rendered(lines, width, color=False)

    assert all(len(line) <= width for line in made)
    assert "\x1b" not in "".join(made)
    assert "\x1b[" in "".join(rendered(lines, width, color=True))


def test_frames_restore_the_screen_even_at_its_last_row() -> None:
    before = "\n".join(f"line {n}" for n in range(30)) + "\ntest_it.py .."
    screen = Screen().write(before)

    screen.write(frame(["tp=1 trains", "tp=2 trains"], 13))
    assert screen.text == before + "\ntp=1 trains\ntp=2 trains"
    screen.write(frame(["tp=2 trains"], 13))
    assert screen.text == before + "\ntp=2 trains"
    screen.write(frame([], 13)).write(".")
    assert screen.text == before + "."


def test_a_log_gets_plain_lines_only_while_points_run() -> None:
    board, file = Board(clock=lambda: 0.0), io.StringIO()
    shown = Live(board.rows, board.clock, file, lambda: 5, terminal=False, color=False)

    shown.draw()
    assert file.getvalue() == ""
    with board.running("tp=2", "float64 run", 2) as enter:
        enter(WAITING)
        shown.draw()
    shown.draw()
    shown.clear()

    assert file.getvalue() == "\ntrainsafe: tp=2, float64 run waits for free ranks, 2 ranks, 0 s\n"


@pytest.mark.parametrize("options", [[], ["-n", "2"]], ids=["alone", "workers"])
def test_a_terminal_shows_running_points_and_keeps_pytests_own_lines(
    options: list[str], pytester: pytest.Pytester, project: pytest.Pytester
) -> None:
    if options:
        pytest.importorskip("xdist")
    project.makepyfile(test_inner=TEST)
    read, write = pty.openpty()
    environ = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options]
    with subprocess.Popen(command, stdout=write, cwd=project.path, env=environ) as process:
        os.close(write)
        text = seen_points(read, project.path)
        assert process.wait(60) == 0
    os.close(read)

    screen = Screen(columns=1000).write(text)  # the path of the root directory may be long
    worker, file = (r"gw[01] ", "") if options else ("", r"test_inner\.py ")
    assert re.search(worker + r"tp=2 +float64 run trains +2 ranks +\d+ s", text)
    assert "float64 run" not in screen.text
    assert re.search(rf"^{file}\.\. +\[100%\]$", screen.text, re.MULTILINE)


def seen_points(terminal: int, folder: Path) -> str:
    """The output of a terminal until it closes; creates a file when a Point's line is shown."""
    data = b""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # Linux, once the other side is closed
            break
        data += piece
        for number in (1, 2):
            if f"tp={number}".encode() in data.replace(b"\r", b""):
                (folder / f"seen-tp={number}").touch()
        if not piece:
            break
    return data.decode().replace("\r\n", "\n")
