"""Locks on files that the kernel frees when their holder dies, however it dies.

Used by the leases and by the reference cache.  They are flock(2) locks, of an open file and not
of a process: threads exclude each other as processes do.  They are shared where readers need
that, can be looked at without being taken, and stay with a file that is renamed, none of which
`filelock` offers.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
from pathlib import Path
from types import TracebackType

from pytest_trainsafe.core.untrusted import BadFileError, require_regular
from pytest_trainsafe.errors import TrainsafeError

#: Seconds between two looks at a lock that another holds.
POLL = 0.02

#: What this process has locked; a process forked from it must not keep it locked.
_open: set[int] = set()


class Stopped(TrainsafeError):
    """Waiting ended because the caller asked for it, not because its turn had come."""


class Lock:
    """A locked file.  Leaving the `with` block, or `release()`, gives it up."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        _open.add(descriptor)

    def release(self) -> None:
        """Give the lock up; a second time does nothing."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            _open.discard(descriptor)
            os.close(descriptor)

    def __enter__(self) -> Lock:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def try_lock(path: Path, *, shared: bool = False) -> Lock | None:
    """Lock the file `path`, which is made if need be; None where another holds it.

    Raises BadFileError where something else than a regular file lies there, such as a link.
    """
    while True:
        descriptor = _open_regular(path, os.O_RDWR | os.O_CREAT)
        if not _flock(descriptor, shared):
            os.close(descriptor)
            return None
        if _still_at(path, descriptor):
            return Lock(descriptor)
        os.close(descriptor)  # its last holder removed it; a lock on that file guards nothing


def wait_lock(path: Path, stop: threading.Event) -> Lock:
    """Lock the file `path` when it becomes free.  Raises Stopped when `stop` is set first."""
    while (lock := try_lock(path)) is None:
        if stop.wait(POLL):
            raise Stopped(f"stopped waiting for {path}")
    return lock


def is_locked(path: Path) -> bool:
    """Whether somebody holds a lock on the file `path`; False where there is no such file."""
    try:
        descriptor = _open_regular(path, os.O_RDONLY)
    except (FileNotFoundError, BadFileError):
        return False
    try:
        return not _flock(descriptor, shared=True)
    finally:
        os.close(descriptor)


def _open_regular(path: Path, flags: int) -> int:
    """Open a regular file that is no link; never waits, as opening a pipe does."""
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError as error:
        # Raised for a folder, a link, a socket, a pipe or a device, which cannot be opened so.
        if error.errno in (errno.EISDIR, errno.ELOOP, errno.ENXIO, errno.ENODEV):
            require_regular(os.lstat(path), path)
        raise
    try:
        require_regular(os.fstat(descriptor), path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _flock(descriptor: int, shared: bool) -> bool:
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _still_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _forget_the_parents() -> None:
    for descriptor in _open:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _open.clear()


os.register_at_fork(after_in_child=_forget_the_parents)
