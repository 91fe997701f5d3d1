"""Processes: the supervisor's interface to a running group, however it was started.

A guard is the parent of the group and writes JSON lines to a control socket: {"exit": code} when
the launcher ended, {"rank": r, "exit": code} when a rank ended, {"refused": why} if it will not
start the group, {"leftovers": [...]} when it has swept; then it exits.
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

    #: the guard's lines; anything sent to it requests the sweep
    control: socket.socket
    #: read end of a pipe with the output of the launcher and, if need be, of the ranks
    output: int
    #: the guard's process id; 0 until a forked guard has reported it in {"guard": pid}
    guard: int

    def reap(self, *, by_force: bool) -> None:
        """Called last: the guard has closed the control socket, or does not end."""
        ...

    def obituary(self) -> str:
        """Why the guard ended without a request, for a sentence about the group."""
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
        """Waits for the guard, and closes its pipes."""
        if by_force:  # the kernel does not end one of its processes
            self._guard.kill()
        self._guard.wait()
        assert self._guard.stdout is not None
        self._guard.stdout.close()
        self.control.close()

    def obituary(self) -> str:
        """The guard's exit code, if it is known."""
        code = self._guard.poll()
        return f"its guard died ({'ended' if code is None else f'exit code {code}'})"
