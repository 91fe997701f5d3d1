"""Console: where pytest's own output goes, for the lines of ranks and for a debugger in a rank.

The plugin opens it if the user asks for live output (`-s`) or for a debugger
(`--trainsafe-debug`).  A process has one terminal, so it has at most one console.
"""

from __future__ import annotations

import contextlib
import os
import select
import termios
import threading
from collections.abc import Callable

_current: Console | None = None


def current() -> Console | None:
    """The open console of this process; None if ranks show nothing while they run."""
    return _current


class Console:
    """Two descriptors for output, and that of a terminal to lend to ranks (None for none).

    The console owns the descriptors; `close` closes them.  `column` returns the width of pytest's
    unfinished line.
    """

    def __init__(
        self,
        stdout: int,
        stderr: int,
        terminal: int | None = None,
        column: Callable[[], int] = lambda: 0,
    ) -> None:
        global _current
        self.terminal = terminal
        #: The process id of the rank that has the terminal, 0 for none.
        self.borrower = 0
        #: Whether a rank has had the terminal.
        self.lent = False
        self._outputs = {"stdout": stdout, "stderr": stderr}
        self._column = column
        self._at_start = True
        self._settings: list[object] = []
        #: Held by whoever writes to the terminal, also by a rank that has borrowed it.
        self._lock = threading.Lock()
        self._before, _current = _current, self

    def close(self) -> None:
        """Closes the descriptors; the console that was open before is the current one again."""
        global _current
        _current = self._before
        for descriptor in {*self._outputs.values(), self.terminal} - {None}:
            assert descriptor is not None
            os.close(descriptor)

    def begin_line(self) -> None:
        """Lets the next line of a rank begin below an unfinished line of pytest."""
        self._at_start = True

    def write(self, stream: str, lines: bytes) -> None:
        """Writes whole lines to "stdout" or "stderr"; waits while a rank has the terminal."""
        with self._lock:
            if self._at_start and self._column() > 0:
                lines = b"\n" + lines
            self._at_start = False
            # The reader of the output may have gone; pytest itself finds out.
            with contextlib.suppress(OSError):
                _write(self._outputs[stream], lines)

    def lend(self, borrower: int) -> bool:
        """Reserves the terminal for the process `borrower`; returns whether it was free."""
        assert self.terminal is not None
        if not self._lock.acquire(blocking=False):
            return False
        self._settings = termios.tcgetattr(self.terminal)
        self.borrower, self.lent = borrower, True
        return True

    def take_back(self) -> None:
        """Ends a loan, and undoes what the borrower changed of the terminal's settings."""
        assert self.terminal is not None
        self.borrower = 0
        with contextlib.suppress(termios.error):  # the terminal was closed
            termios.tcsetattr(self.terminal, termios.TCSANOW, self._settings)  # type: ignore[arg-type]
        self._at_start = True
        self._lock.release()


def _write(descriptor: int, content: bytes) -> None:
    while content:
        try:
            content = content[os.write(descriptor, content) :]
        except BlockingIOError:  # a descriptor that another program made non-blocking
            select.select([], [descriptor], [], 1.0)
