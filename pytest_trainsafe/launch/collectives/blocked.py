"""Records the call in which a rank's main thread waits, in a file that the supervisor reads.

The ledger lists the collectives that a rank called, but not whether they returned.  The rank
records the latter in a small memory-mapped file, which it can update without a system call.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
from pathlib import Path
from typing import NamedTuple

from pytest_trainsafe.core.untrusted import read_file

_FORM = struct.Struct("<qqq")
#: The number of a call that is not in the ledger.
UNKNOWN = -1
#: Threads that make no calls of their own rank: those of multiprocessing's queues, which data
#: loaders use, and other ranks of the same process.
_KNOWN = ("QueueFeederThread", "trainsafe-rank-")


class WaitState(NamedTuple):
    """The state of a rank's main thread.

    `call` is the number, counted from 1, of the call in the ledger in which the thread waits; 0
    while it runs its own code; UNKNOWN while it waits for work that is not in the ledger.
    `changes` counts how often it entered or left a call.  `threads` is set if other threads of the
    program may communicate.
    """

    call: int = 0
    changes: int = 0
    threads: bool = False


#: The state of a rank about which nothing is known.
UNKNOWN_STATE = WaitState()


class Blocked:
    """The rank's side: records which calls the thread that makes this object enters and leaves."""

    def __init__(self, path: Path) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            # Allocate the page now: with a full disk, its first access would raise SIGBUS.
            os.write(fd, bytes(_FORM.size))
            self._memory = mmap.mmap(fd, _FORM.size)
        finally:
            os.close(fd)
        self._pid = os.getpid()
        self._main = threading.get_ident()
        self._changes = 0
        self._threads = False

    def enter(self, call: int) -> None:
        """Records that the calling thread enters the call with this number."""
        if os.getpid() != self._pid:  # a process that the program forked shares the memory
            return
        if threading.get_ident() != self._main:
            self._threads = True
            self._write(0)
            return
        self._threads = self._threads or _others_run()
        self._write(call)

    def leave(self) -> None:
        """Records that the call has returned."""
        if threading.get_ident() == self._main and os.getpid() == self._pid:
            self._write(0)

    def _write(self, call: int) -> None:
        self._changes += 1
        _FORM.pack_into(self._memory, 0, call, self._changes, self._threads)


def read_wait_state(path: Path) -> WaitState:
    """The state that a rank recorded; UNKNOWN_STATE if there is no valid file."""
    try:
        content = read_file(path, below=path.parent.parent, max_bytes=_FORM.size)
        call, changes, threads = _FORM.unpack(content)
    except (OSError, struct.error):
        return UNKNOWN_STATE
    return WaitState(call, changes, bool(threads))


def _others_run() -> bool:
    """Whether the program has threads that may make calls of their own."""
    if threading.active_count() == 1:
        return False
    main = threading.main_thread()
    return any(
        each is not main and not each.name.startswith(_KNOWN) for each in threading.enumerate()
    )
