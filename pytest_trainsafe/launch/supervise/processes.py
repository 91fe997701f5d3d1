"""Processes: the supervisor's interface to a running group, however it was started.

A reaper is the parent of the group and writes JSON lines to a control socket: {"exit": code} when
the launcher ended, {"rank": r, "exit": code} when a rank ended, and {"refused": why} if it will not
start the group.  Its last line is {"leftovers": [...]}, the processes that it had to kill.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol


class Processes(Protocol):
    """The processes of one group, below their reaper."""

    #: socket for the reaper's lines; anything that is sent on it makes the reaper kill the group
    control: socket.socket
    #: read end of a pipe with the output of the launcher and, if need be, of the ranks
    output: int
    #: the reaper's process id; 0 until a forked reaper has reported it in {"reaper": pid}
    reaper: int

    def reap(self, *, by_force: bool) -> None:
        """Waits for the reaper and closes our descriptors; called last.

        `by_force` is set if the reaper has not closed the control socket, and so must be killed.
        """
        ...

    def launcher(self) -> int:
        """The id of the process between the reaper and the ranks; 0 if there is none, or not yet.

        It must run for the ranks to meet, and to be ended.
        """
        ...

    def death_reason(self) -> str:
        """A clause that says how the reaper ended.

        Called only if the reaper ended without being asked to end.
        """
        ...


class ReapedCommand:
    """A command, such as torchrun, that starts the ranks.

    The command is the child of a reaper, a process that ends all processes below it when this
    process ends or asks for it.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str], cwd: str) -> None:
        self.reaper = self._launcher = 0
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

    def launcher(self) -> int:
        """The reaper's first child, such as the agent of torchrun."""
        if not self._launcher:
            with contextlib.suppress(OSError, ValueError, IndexError):
                children = Path(f"/proc/{self.reaper}/task/{self.reaper}/children").read_text()
                self._launcher = int(children.split()[0])
        return self._launcher

    def death_reason(self) -> str:
        """A clause that says that the reaper died, with its exit code if that is known."""
        code = self._reaper.poll()
        return (
            "its reaper, the process that ends the ranks, died "
            f"({'exit code unknown' if code is None else f'exit code {code}'})"
        )
