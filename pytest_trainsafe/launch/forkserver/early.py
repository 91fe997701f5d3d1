"""Starts the fork server of a pytest run while pytest still collects tests.

The server needs as long to import torch as the test modules do, so the two imports overlap.  The
plugin calls `start` when a test will train; the launcher takes the server over.
"""

from __future__ import annotations

import os
import sys

from pytest_trainsafe.launch.forkserver.fit import changed_at_start
from pytest_trainsafe.launch.forkserver.preload import SAFE
from pytest_trainsafe.launch.forkserver.start import WarmServer, teach

#: Whether this run has started a server early.
_started = False

#: The server that waits to be taken, and the environment in which it was started.
_waiting: list[tuple[WarmServer, dict[str, str]]] = []


def start() -> bool:
    """Starts a fork server for this process, once; returns whether it did."""
    global _started
    if _started:
        return False
    _started = True
    _waiting.append((WarmServer.start(), dict(os.environ)))
    return True


def take() -> WarmServer | None:
    """The server that was started early, which the caller closes; None if there is none.

    None too if the environment has changed since then in a way that the server would not notice,
    because a test module or a conftest.py set a variable that torch reads at its import.
    """
    if not _waiting:
        return None
    server, environ = _waiting.pop()
    if changed_at_start(environ, os.environ):
        server.close()
        return None
    return server


def expect_imports() -> None:
    """Lets the waiting server import what the programs have imported here, as the ranks will."""
    found = [name for name in SAFE if name in sys.modules]
    for server, _ in _waiting:
        if found:
            teach(server.address, found)


def close() -> None:
    """Ends a server that nobody took, so that the next run of this process can start one."""
    global _started
    _started = False
    while _waiting:
        _waiting.pop()[0].close()
