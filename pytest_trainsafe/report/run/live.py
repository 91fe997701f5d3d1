"""Live lines: the current activity of each running Point while a test waits for it.

On a terminal, a line for each running Point is shown below pytest's own output and removed when the
test ends. Elsewhere, as in CI logs, a plain line is printed from time to time. With
pytest-xdist the controller shows the Points of its workers (`live_workers.py`). Nothing is shown if
other output may appear during a test (`-s`, live logs).
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Generator, Sequence
from typing import TextIO

import pytest

from pytest_trainsafe.config.settings import SETTINGS
from pytest_trainsafe.core.usage import excerpt
from pytest_trainsafe.runs.progress.board import TRAINING, Board, Status

#: Seconds between two frames on a terminal, and between two plain lines of a log.
FRAME, PLAIN = 0.5, 30.0

#: The most lines of a frame.
MAX_LINES = 8

#: Holds the board of the session once there is one.
BOARD = pytest.StashKey[Board]()


def point_lines(rows: Sequence[Status], now: float) -> list[tuple[str, str, str, str]]:
    """A line for each running Point: the Point, its activity, its ranks, and seconds.

    If a Point has several Runs, the one that trains is shown, with the number of the others.
    """
    points: dict[str, list[Status]] = {}
    for row in rows:
        points.setdefault(row.point, []).append(row)
    lines = []
    for point, runs in points.items():
        shown = next((row for row in runs if row.stage == TRAINING), runs[0])
        others = f", {len(runs) - 1} more" if len(runs) > 1 else ""
        behind = f" of {shown.behind}" if shown.behind else ""
        lines.append(
            (
                excerpt(point, 60),
                excerpt(f"{shown.run} {shown.stage}{behind}{others}", 160),
                f"{shown.ranks} rank{'s' * (shown.ranks != 1)}",
                f"{max(0.0, now - shown.since):.0f} s",
            )
        )
    left = len(lines) - MAX_LINES
    return [*lines[:MAX_LINES], (f"and {left} more", "", "", "")] if left > 0 else lines


def rendered(lines: Sequence[tuple[str, str, str, str]], width: int, color: bool) -> list[str]:
    """The lines as a rich table, each at most `width` columns wide."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for style in ("bold", "", "", "cyan"):
        table.add_column(style=style, no_wrap=True, overflow="ellipsis")
    for line in lines:
        table.add_row(*(Text(cell) for cell in line))
    # The colour system is not taken from the environment: only pytest's choice counts.
    console = Console(
        width=width,
        force_terminal=True,
        color_system="standard" if color else None,
        no_color=not color,
        legacy_windows=False,
    )
    with console.capture() as captured:
        console.print(table)
    return captured.get().splitlines()


def frame(lines: Sequence[str], column: int) -> str:
    """The text that shows lines below the cursor's line; without lines, it clears older ones.

    Control sequences in it put the cursor back to `column`.
    """
    below = "\n".join(lines)
    back = f"\x1b[{column}C" if column else ""
    return f"\n\x1b[J{below}\x1b[{max(1, len(lines))}A\r{back}"


def plain(lines: Sequence[tuple[str, str, str, str]]) -> str:
    """The lines as plain text for a log, each beginning with "trainsafe: "."""
    return "".join(f"trainsafe: {', '.join(filter(None, line))}\n" for line in lines)


class Live:
    """Shows a line for each running Point during each test, from its own thread.

    `rows` returns the Runs in progress, and `clock` the current time, from which their ages are
    computed. `file` is pytest's uncaptured output, and `column` returns the width of pytest's
    current line.
    """

    def __init__(
        self,
        rows: Callable[[], Sequence[Status]],
        clock: Callable[[], float],
        file: TextIO,
        column: Callable[[], int],
        *,
        terminal: bool,
        color: bool,
    ) -> None:
        self._rows = rows
        self._clock = clock
        self._file = file
        self._column = column
        self._terminal = terminal
        self._color = color
        #: Held while the terminal is written to.
        self.lock = threading.RLock()
        self.interval = FRAME if terminal else PLAIN
        self._shown = False
        self._paused = False
        #: The column of pytest's line below which the lines are shown.
        self._at = 0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        ended = threading.Event()
        self._paused = False
        thread = threading.Thread(target=self._show, args=(ended,), name="trainsafe-live")
        thread.daemon = True
        thread.start()
        try:
            return (yield)
        finally:
            ended.set()
            thread.join()
            self.clear()

    def pytest_enter_pdb(self) -> None:
        """Leaves the terminal to the debugger until the test ends."""
        self._paused = True
        self.clear()

    def pytest_unconfigure(self) -> None:
        self._file.close()

    def _show(self, ended: threading.Event) -> None:
        while not ended.wait(self.interval):
            self.draw()

    def draw(self) -> None:
        """Writes the current lines."""
        with self.lock:
            if self._paused:
                return
            lines = point_lines(self._rows(), self._clock())
            if not self._terminal:
                if lines:
                    self._write(("\n" if self._column() else "") + plain(lines))
            elif lines or self._shown:
                size = shutil.get_terminal_size()
                # Text in the last column would wrap; a frame higher than the screen would scroll.
                fitting = lines[: max(1, size.lines - 2)]
                self._at = max(0, self._column())
                self._write(frame(rendered(fitting, size.columns - 1, self._color), self._at))
                self._shown = bool(lines)

    def clear(self) -> None:
        """Removes the lines from the terminal."""
        with self.lock:
            if self._shown:
                self._write(frame([], self._at))
                self._shown = False

    def _write(self, text: str) -> None:
        try:
            self._file.write(text)
            self._file.flush()
        except OSError:  # the reader of the output has gone; pytest itself finds out
            self._paused = True


def start(config: pytest.Config) -> None:
    """Shows live lines in this run, unless other output may appear during tests.

    Called before the first test, when pytest does not capture its own output.
    """
    if hasattr(config, "workerinput") or config.pluginmanager.hasplugin("dsession"):
        return

    def rows() -> list[Status]:
        board = config.stash.get(BOARD, None)
        return board.rows() if board is not None else []

    live = live_of(config, rows, time.monotonic)
    if live is not None:
        config.pluginmanager.register(live, "trainsafe_live")


def live_of(
    config: pytest.Config, rows: Callable[[], Sequence[Status]], clock: Callable[[], float]
) -> Live | None:
    """A Live for this run's output; None if other output may appear during tests."""
    reporter = config.pluginmanager.getplugin("terminalreporter")
    if (
        reporter is None
        or config.get_verbosity() < 0
        or config.getoption("capture") == "no"
        or config.stash[SETTINGS].debug is not None
        or config.getoption("log_cli_level") is not None
        or config.getini("log_cli")
    ):
        return None
    writer = config.get_terminal_writer()
    try:
        # During tests the descriptor of pytest's output is that of the capture.
        file = os.fdopen(os.dup(writer._file.fileno()), "w", encoding="utf-8", errors="replace")
    except (OSError, ValueError, AttributeError):  # an output without a descriptor
        return None
    terminal = file.isatty() and os.environ.get("TERM") not in ("dumb", "")
    if terminal:
        # Here and not when the thread first needs it: before Python 3.13, compiling a module while
        # the main thread parses sources may fail (`runs/cached/sources.py`).
        rendered([("", "", "", "")], 10, color=False)
    return Live(
        rows,
        clock,
        file,
        lambda: writer.width_of_current_line,
        terminal=terminal,
        color=writer.hasmarkup,
    )
