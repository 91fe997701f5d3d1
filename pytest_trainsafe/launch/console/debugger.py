"""pdb in a rank, on the terminal that the rank borrows from pytest (`loan.py`).

Called by `breakpoints`, in the rank that the user named.
"""

from __future__ import annotations

import bdb
import contextlib
import os
import pdb
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from pytest_trainsafe.core.code_files import line_of
from pytest_trainsafe.launch.console.breakpoint_error import BreakpointError
from pytest_trainsafe.launch.console.loan import SOCKET
from pytest_trainsafe.launch.resources.short_path import short_path

#: Modules that the debugger does not step into.
_OURS = ["pytest_trainsafe.launch.*", "pytest_trainsafe.record.*"]


class Debugger(pdb.Pdb):
    """pdb on the terminal of pytest.

    The rank's standard streams are the terminal from a breakpoint until the command `c` or `q`, so
    what the program prints meanwhile is shown there and nowhere else.  `label` says which Run of a
    test the group is.
    """

    def __init__(self, rank: int, world_size: int, group: Path, label: str = "") -> None:
        super().__init__(nosigint=True, skip=_OURS)
        self._title = f"rank {rank} of {world_size}"
        self._label = f" ({label})" if label else ""
        self._group = group
        self._connection: socket.socket | None = None
        self._saved: list[int] = []
        self._leaves = False
        # Not the program's own objects, which it may have replaced; input() edits lines with
        # readline only on descriptors 0 and 1.
        self.stdin: TextIO = open(0, closefd=False)  # noqa: SIM115
        self.stdout: TextIO = open(  # noqa: SIM115
            1, "w", buffering=1, errors="replace", closefd=False
        )

    def stop_at(self, frame: FrameType, header: str | None) -> None:
        """Takes the terminal, and stops the program at the next line of this frame."""
        self.take()
        if header is not None:
            self.message(header)
        self.set_trace(frame)

    def take(self) -> None:
        """Waits for the terminal; has no effect if the rank has it already."""
        if self._connection is not None:
            return
        connection = socket.socket(socket.AF_UNIX)
        try:
            with short_path(self._group) as folder:
                connection.connect(f"{folder}/{SOCKET}")
            _, fds, _, _ = socket.recv_fds(connection, 1, 1)
        except OSError:
            fds = []
        if not fds:
            connection.close()
            raise BreakpointError(
                f"{self._title} found no terminal; its launcher does not supervise it by "
                "run_command, or pytest is ending"
            )
        _flush()
        self._saved = [os.dup(number) for number in range(3)]
        for number in range(3):
            os.dup2(fds[0], number)
        os.close(fds[0])
        self._connection, self._leaves = connection, False
        self.message(
            f"\n{self._title}{self._label} is in its debugger, and the others wait: c goes on, q "
            "ends the test, Ctrl-C twice ends pytest"
        )

    def give_back(self) -> None:
        """Returns the terminal; has no effect if the rank does not have it."""
        if self._connection is None:
            return
        _flush()
        self.stdout.flush()
        for number, saved in enumerate(self._saved):
            os.dup2(saved, number)
            os.close(saved)
        with contextlib.suppress(OSError):
            self._connection.send(b".")
        self._connection.close()
        self._connection = None

    def interaction(self, *args: Any, **keywords: Any) -> None:
        self.take()
        with _standard_streams(self.stdin, self.stdout):
            super().interaction(*args, **keywords)
        if self._leaves:
            self.give_back()

    def set_continue(self) -> None:
        super().set_continue()
        self._leaves = True

    def set_quit(self) -> None:
        super().set_quit()
        self._leaves = True

    def trace_dispatch(self, frame: FrameType, event: str, arg: Any) -> Any:
        try:
            return super().trace_dispatch(frame, event, arg)
        except bdb.BdbQuit:
            where = line_of(frame)
        raise BreakpointError(f"the user ended the debugger of {self._title} (q) at {where}")


@contextlib.contextmanager
def _standard_streams(stdin: TextIO, stdout: TextIO) -> Iterator[None]:
    before = sys.stdin, sys.stdout, sys.stderr
    sys.stdin, sys.stdout, sys.stderr = stdin, stdout, stdout
    try:
        yield
    finally:
        sys.stdin, sys.stdout, sys.stderr = before


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
