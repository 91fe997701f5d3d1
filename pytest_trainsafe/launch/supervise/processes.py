"""Processes: a running group as `supervise` sees it, however its processes came to be.

A guard stands above them and speaks on a control socket, in JSON lines: {"exit": code} when the
launcher ended, {"rank": r, "exit": code} when a rank did, {"refused": why} when it will not
start the group, {"leftovers": [...]} when it has swept; then it ends.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol


class Processes(Protocol):
    """The processes of one group, below their guard."""

    #: the guard's lines; anything sent there is the request to sweep
    control: socket.socket
    #: read end of a pipe that holds what the launcher and, in need, the ranks say
    output: int
    #: the guard's process id; 0 before it is known: a forked one says it in {"guard": pid}
    guard: int

    def reap(self, *, by_force: bool) -> None:
        """Called last: the guard has closed the control socket, or would not end."""
        ...

    def obituary(self) -> str:
        """Why the guard ended before it was asked to, for a sentence about the group."""
        ...


class Guarded:
    """A command, such as torchrun, that starts the ranks below a guard of its own."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], cwd: str) -> None:
        self.guard = 0
        self.control, theirs = socket.socketpair()
        with theirs:
            guard = [sys.executable, "-I", "-S", str(Path(__file__).with_name("guard.py"))]
            try:
                self._guard = subprocess.Popen(
                    [*guard, str(theirs.fileno()), str(os.getpid()), *command],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    cwd=cwd,
                    env=dict(env),
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
            except BaseException:
                self.control.close()
                raise
        assert self._guard.stdout is not None
        self.output = self._guard.stdout.fileno()
        self.guard = self._guard.pid

    def reap(self, *, by_force: bool) -> None:
        """Wait for the guard."""
        if by_force:  # a process that the kernel does not let go
            self._guard.kill()
        self._guard.wait()
        assert self._guard.stdout is not None
        self._guard.stdout.close()
        self.control.close()

    def obituary(self) -> str:
        """Its exit code, as far as it can be told."""
        code = self._guard.poll()
        return f"its guard died ({'ended' if code is None else f'exit code {code}'})"
