"""WarmServer: starts and ends the fork server of a pytest run, and knows its address."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytest_trainsafe.launch.resources import scratch
from pytest_trainsafe.launch.resources.scratch import Scratch
from pytest_trainsafe.launch.resources.short_path import short_path

_LISTENING, _LEARNING = "ranks", "learn"


class WarmServer:
    """A running fork server.  One per pytest run; all workers of the run share its `address`.

    It serves only processes of the same user: its sockets are in a directory that other users
    cannot enter.  It ends with `close`, or when its controller ends for whatever reason.
    """

    def __init__(
        self, folder: Scratch, keeper: subprocess.Popen[bytes], life: socket.socket | None
    ) -> None:
        self.address = str(folder.path)
        self._folder = folder
        self._keeper = keeper
        self._life = life

    @classmethod
    def start(
        cls,
        directory: Path | None = None,
        preload: Sequence[str] = (),
        controller: int | None = None,
    ) -> WarmServer:
        """Starts a server and returns at once; it takes seconds until it is ready.

        Its sockets are in a new folder below `directory`, by default the folder for temporary
        files.  `preload` names installed modules to import in addition to torch, if that is safe.
        The server ends when the process with the id `controller` ends, by default this process.  A
        pytest worker, which may end before other workers, passes the id of the process that
        started them all.
        """
        made = scratch.make("warm", directory)
        address = str(made.path)
        with contextlib.ExitStack() as stack:
            ours = None
            if controller is None:
                controller = os.getpid()
                ours, theirs = socket.socketpair()
                life = stack.enter_context(theirs).fileno()
            else:
                life = os.pidfd_open(controller)
                stack.callback(os.close, life)
            sockets = [
                stack.enter_context(socket.socket(socket.AF_UNIX, kind))
                for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM)
            ]
            with short_path(address) as folder:
                for each, name in zip(sockets, (_LISTENING, _LEARNING), strict=True):
                    each.bind(f"{folder}/{name}")
            sockets[0].listen(128)
            fds = [*(each.fileno() for each in sockets), life, made.lock.descriptor]
            keeper = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "pytest_trainsafe.launch.forkserver.keeper"),
                    *(*map(str, fds), str(controller), address, *preload),
                ],
                stdin=subprocess.DEVNULL,
                pass_fds=fds,
                start_new_session=True,
            )
        return cls(made, keeper, ours)

    def close(self) -> None:
        """Ends the server and every process below it, and removes its directory.

        Does nothing if another process is the controller; the server ends with that process.
        """
        if self._life is not None:
            self._life.close()
            self._keeper.wait()
            self._folder.lock.release()


def connect(address: str) -> socket.socket:
    """Connects to the server at this address.

    Raises OSError if there is no server, PermissionError if its folder belongs to another user or
    is open to others.
    """
    found = os.stat(address)
    if found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(
            f"{address}, the folder of the fork server, is not a private directory of this user; "
            "it must belong to this user and have mode 700"
        )
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with short_path(address) as folder:
            connection.connect(f"{folder}/{_LISTENING}")
    except BaseException:
        connection.close()
        raise
    return connection


def teach(address: str, names: Sequence[str]) -> None:
    """Sends the server names of modules to preload; errors are ignored."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        with short_path(address) as folder:
            for start in range(0, len(names), 500):
                chunk = json.dumps(names[start : start + 500]).encode()
                sender.sendto(chunk, f"{folder}/{_LEARNING}")


def status(address: str) -> dict[str, Any]:
    """The state of the server: a dict with the keys below.

    "server" is the server's process id.  "learned" lists the modules that the server imported after
    a child process had tried them; "never" maps each module that the server refuses to import to
    the reason.  "imported" lists the modules of `preload.SAFE` that it has imported.  "busy" is
    whether a module is to be tried.  Waits until the server is ready.
    Raises ConnectionError if the server ends without an answer.
    """
    with connect(address) as connection, connection.makefile("r") as lines:
        connection.sendall(b"{}\n")
        for line in lines:
            message = json.loads(line)
            if "status" in message:
                return dict(message["status"])
    raise ConnectionError("the fork server ended before it answered")
