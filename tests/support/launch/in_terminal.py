"""Runs a command in a terminal of its own, as a user at a keyboard does."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import subprocess
import termios
import time
from collections.abc import Sequence
from pathlib import Path

#: Seconds within which an expected text must appear, on a busy machine.
PATIENCE = 240.0


class Terminal:
    """A command whose standard streams are a new terminal, which is its controlling terminal."""

    def __init__(self, command: Sequence[str], cwd: Path) -> None:
        self.shown = ""
        self._seen = 0
        self.screen, keyboard = pty.openpty()
        self.settings = termios.tcgetattr(keyboard)
        self.process = subprocess.Popen(
            command,
            cwd=cwd,
            env={**os.environ, "TERM": "xterm", "NO_COLOR": "1"},
            stdin=keyboard,
            stdout=keyboard,
            stderr=keyboard,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        self._keyboard = keyboard

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.screen)
        os.close(self._keyboard)

    def type(self, keys: str) -> None:
        """Types keys; "\\x03" is Ctrl-C."""
        os.write(self.screen, keys.encode())

    def expect(self, text: str) -> str:
        """Waits until the terminal shows the text after what was expected before.

        Returns what was shown before it.
        """
        until = time.monotonic() + PATIENCE
        while (found := self.shown.find(text, self._seen)) < 0:
            assert self._read(until), f"{text!r} did not appear in:\n{self.shown}"
        before = self.shown[self._seen : found]
        self._seen = found + len(text)
        return before

    def expect_all(self, text: str) -> None:
        """Waits until the terminal has shown the text, at any time."""
        until = time.monotonic() + PATIENCE
        while text not in self.shown:
            assert self._read(until), f"{text!r} did not appear in:\n{self.shown}"

    def wait(self) -> int:
        """Waits until the command has ended; returns its exit code."""
        until = time.monotonic() + PATIENCE
        ended = os.pidfd_open(self.process.pid)
        try:
            while not select.select([ended], [], [], 0)[0]:
                assert self._read(until, ended), f"the command goes on; it has shown:\n{self.shown}"
            while select.select([self.screen], [], [], 0)[0] and self._read(until):
                pass
        finally:
            os.close(ended)
        return self.process.wait()

    def changed_settings(self) -> bool:
        """Whether the terminal has other settings than at the start, such as no echo."""
        return termios.tcgetattr(self._keyboard) != self.settings

    def _read(self, until: float, *others: int) -> bool:
        ready, _, _ = select.select(
            [self.screen, *others], [], [], max(0.0, until - time.monotonic())
        )
        if self.screen in ready:
            with contextlib.suppress(OSError):
                self.shown += os.read(self.screen, 65536).decode("utf-8", "replace")
        return bool(ready)
