"""Locks on files, which the kernel releases when the process that holds them dies.

Used by the leases and by the reference cache.  They are flock(2) locks, which belong to an open
file and not to a process, so threads exclude each other as processes do.  Unlike the locks of
`filelock`, they can be shared, they can be tested without being taken, and they follow a file that
is renamed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
from pathlib import Path
from types import TracebackType

from pytest_trainsafe.errors import TrainsafeError

#: Seconds between two attempts to take a lock that is held elsewhere.
POLL = 0.02

#: Descriptors that this process holds locks on; a forked process closes them.
_open: set[int] = set()


class Stopped(TrainsafeError):
    """The caller set its `stop` event, which ended the wait for a lock or for room."""


class Lock:
    """A locked file.  Leaving the `with` block, or `release()`, releases it."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        _open.add(descriptor)

    def release(self) -> None:
        """Releases the lock; a second call does nothing."""
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
    """Locks the file `path`, creating it if needed; returns None if the lock is held elsewhere.

    Raises BadFileError if `path` is not a regular file, for example a link.
    """
    while True:
        descriptor = _open_regular(path, os.O_RDWR | os.O_CREAT)
        if not _flock(descriptor, shared):
            os.close(descriptor)
            return None
        if _still_at(path, descriptor):
            return Lock(descriptor)
        os.close(descriptor)  # the last holder removed this file: nobody else would see our lock


def try_lock_folder(path: Path, *, shared: bool = False) -> Lock | None:
    """Locks a folder, as `try_lock` does a file; returns None also if there is no such folder."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        return None
    if _flock(descriptor, shared) and _still_at(path, descriptor):
        return Lock(descriptor)
    os.close(descriptor)
    return None


def wait_lock(path: Path, stop: threading.Event) -> Lock:
    """Locks the file `path` when it becomes free.  Raises Stopped if `stop` is set first."""
    while (lock := try_lock(path)) is None:
        if stop.wait(POLL):
            raise Stopped(f"stopped waiting for {path}")
    return lock


def is_locked(path: Path) -> bool:
    """Whether the file `path` is locked; False if there is no such file."""
    from pytest_trainsafe.core.untrusted import BadFileError

    try:
        descriptor = _open_regular(path, os.O_RDONLY)
    except (FileNotFoundError, BadFileError):
        return False
    try:
        return not _flock(descriptor, shared=True)
    finally:
        os.close(descriptor)


def _open_regular(path: Path, flags: int) -> int:
    """Opens a regular file that is not a link, without blocking, and returns its descriptor."""
    # Imports msgspec, and every run with pytest-xdist locks a folder, also without marked tests.
    from pytest_trainsafe.core.untrusted import require_regular

    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError as error:
        # The errors of a folder, a link, a socket, a pipe or a device.
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


def _close_inherited() -> None:
    for descriptor in _open:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _open.clear()


os.register_at_fork(after_in_child=_close_inherited)
