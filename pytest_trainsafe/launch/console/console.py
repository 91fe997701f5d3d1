"""Console: where pytest's own output goes, for the lines of ranks.

The plugin opens it if the user asks for live output (`-s`).  A process has one terminal, so it has
at most one console.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Callable

_current: Console | None = None


def current() -> Console | None:
    """The open console of this process; None if ranks show nothing while they run."""
    return _current


class Console:
    """Two descriptors for output, which the console owns; `close` closes them.

    `column` returns the width of pytest's unfinished line.
    """

    def __init__(self, stdout: int, stderr: int, column: Callable[[], int] = lambda: 0) -> None:
        global _current
        self._outputs = {"stdout": stdout, "stderr": stderr}
        self._column = column
        self._at_start = True
        #: Held by whoever writes to the terminal.
        self._lock = threading.Lock()
        self._before, _current = _current, self

    def close(self) -> None:
        """Closes the descriptors; the console that was open before is the current one again."""
        global _current
        _current = self._before
        for descriptor in self._outputs.values():
            os.close(descriptor)

    def begin_line(self) -> None:
        """Lets the next line of a rank begin below an unfinished line of pytest."""
        self._at_start = True

    def write(self, stream: str, lines: bytes) -> None:
        """Writes whole lines to "stdout" or "stderr"."""
        with self._lock:
            if self._at_start and self._column() > 0:
                lines = b"\n" + lines
            self._at_start = False
            # The reader of the output may have gone; pytest itself finds out.
            with contextlib.suppress(OSError):
                _write(self._outputs[stream], lines)


def _write(descriptor: int, content: bytes) -> None:
    while content:
        try:
            content = content[os.write(descriptor, content) :]
        except BlockingIOError:  # a descriptor that another program made non-blocking
            select.select([], [descriptor], [], 1.0)
