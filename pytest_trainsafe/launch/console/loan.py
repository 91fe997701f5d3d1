"""Loan: lends the terminal to a rank of a group, while the rank is in its debugger.

A rank asks through a socket in the folder of its group, and gets a descriptor of the terminal.  It
may be in another session, so it has no terminal of its own, and needs none: any process may read
from and write to a terminal that is not its controlling terminal.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
from pathlib import Path

from pytest_trainsafe.launch.console.console import Console
from pytest_trainsafe.launch.resources.peer import peer
from pytest_trainsafe.launch.resources.short_path import short_path

#: The name of the socket in the folder of a group.
SOCKET = "terminal"


class Loan:
    """Lends the terminal of a console to the ranks of a group, to one after the other.

    `folder` is the folder of the group.
    """

    def __init__(self, console: Console, folder: Path) -> None:
        self._console = console
        self._path = folder / SOCKET
        self._asking: list[socket.socket] = []
        self._borrower: tuple[socket.socket, int] | None = None
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.setblocking(False)
        with short_path(folder) as name:
            self._listening.bind(f"{name}/{SOCKET}")
        self._listening.listen(64)

    @property
    def lent(self) -> bool:
        """Whether a rank has the terminal."""
        return self._borrower is not None

    def asked(self) -> bool:
        """Whether a rank has the terminal or waits for it."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self._asking.append(self._listening.accept()[0])
        return bool(self._asking or self._borrower)

    def update(self) -> None:
        """Takes the terminal back from a rank that returns it or ended; lends it to the next."""
        if self._borrower is not None and _returned(*self._borrower):
            self._take_back()
        if self._borrower is None and self._asking and self._console.lend(peer(self._asking[0])[0]):
            connection = self._asking.pop(0)
            borrower = self._console.borrower
            try:
                self._borrower = connection, os.pidfd_open(borrower)
            except OSError:  # it has ended
                connection.close()
                self._console.take_back()
                return
            assert self._console.terminal is not None
            with contextlib.suppress(OSError):
                socket.send_fds(connection, [b"."], [self._console.terminal])

    def close(self) -> None:
        """Takes the terminal back, and answers no further rank."""
        self._take_back()
        for each in (*self._asking, self._listening):
            each.close()
        self._path.unlink(missing_ok=True)

    def _take_back(self) -> None:
        if self._borrower is not None:
            connection, process = self._borrower
            connection.close()
            os.close(process)
            self._borrower = None
            self._console.take_back()


def _returned(connection: socket.socket, process: int) -> bool:
    # Not the connection alone: a child of the rank may hold its other end.
    return bool(select.select([connection.fileno(), process], [], [], 0)[0])
