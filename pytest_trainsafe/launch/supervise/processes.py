"""Processes: the supervisor's interface to a running group, however it was started.

A reaper is the parent of the group and writes JSON lines to a control socket: {"exit": code} when
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
    """The processes of one group, below their reaper."""

    #: the reaper's lines; anything sent to it requests the sweep
    control: socket.socket
    #: read end of a pipe with the output of the launcher and, if need be, of the ranks
    output: int
    #: the reaper's process id; 0 until a forked reaper has reported it in {"reaper": pid}
    reaper: int

    def reap(self, *, by_force: bool) -> None:
        """Called last: the reaper has closed the control socket, or does not end."""
        ...

    def death_reason(self) -> str:
        """Why the reaper ended without a request, for a sentence about the group."""
        ...


class ReapedCommand:
    """A command, such as torchrun, that starts the ranks below a reaper of its own."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], cwd: str) -> None:
        self.reaper = 0
        self.control, theirs = socket.socketpair()
        with theirs:
            reaper = [sys.executable, "-I", "-S", str(Path(__file__).with_name("reaper.py"))]
            try:
                self._reaper = subprocess.Popen(
                    [*reaper, str(theirs.fileno()), str(os.getpid()), *command],
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
        assert self._reaper.stdout is not None
        self.output = self._reaper.stdout.fileno()
        self.reaper = self._reaper.pid

    def reap(self, *, by_force: bool) -> None:
        """Waits for the reaper, and closes its pipes."""
        if by_force:  # the kernel does not end one of its processes
            self._reaper.kill()
        self._reaper.wait()
        assert self._reaper.stdout is not None
        self._reaper.stdout.close()
        self.control.close()

    def death_reason(self) -> str:
        """The reaper's exit code, if it is known."""
        code = self._reaper.poll()
        return f"its reaper died ({'ended' if code is None else f'exit code {code}'})"
