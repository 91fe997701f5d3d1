"""Folders for temporary files, which a later run removes if the processes that used them are dead.

A folder is locked, shared, by every process that uses it, and the kernel releases these locks when
the processes end, however they end.  `sweep` removes the folders of this user that nobody locks.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from pytest_trainsafe.launch.resources.locks import Lock, try_lock_folder

#: Only names of this form are swept.  An older release locked nothing, and used other names.
_NAME = re.compile(r"trainsafe-[a-z]+-\w{8}\.used", re.ASCII)
_SUFFIX = ".used"

#: A folder as short as any is created here where TMPDIR is too long for the path of a socket.
SHORT = "/tmp"


@dataclass(frozen=True, slots=True)
class Scratch:
    """A folder of this process; `remove` removes it, else a later run does."""

    path: Path
    lock: Lock

    def remove(self) -> None:
        """Removes the folder with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.lock.release()


def make(kind: str, directory: str | os.PathLike[str] | None = None) -> Scratch:
    """Creates a folder that only this user can enter, by default below TMPDIR, and locks it."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=f"trainsafe-{kind}-", suffix=_SUFFIX, dir=directory))
        if (lock := hold(path)) is not None:
            return Scratch(path, lock)


def hold(path: Path) -> Lock | None:
    """Locks a folder for this process too; None if it was removed, or is being removed."""
    return try_lock_folder(path, shared=True)


def longest(kind: str, directory: str) -> str:
    """A path as long as those that `make` creates."""
    return os.path.join(directory, f"trainsafe-{kind}-12345678{_SUFFIX}")


def is_scratch(path: Path) -> bool:
    """Whether `path` is a folder of this user, not a link, with a name that `make` gives."""
    try:
        found = path.lstat()
    except OSError:
        return False
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    return ours and _NAME.fullmatch(path.name) is not None


def sweep() -> None:
    """Removes the folders that dead processes of this user left."""
    for parent in {tempfile.gettempdir(), SHORT}:
        with contextlib.suppress(OSError):
            for name in os.listdir(parent):
                if _NAME.fullmatch(name):
                    _sweep(Path(parent, name))


def _sweep(path: Path) -> None:
    if not is_scratch(path):
        return
    with contextlib.suppress(OSError):
        lock = try_lock_folder(path)
        if lock is not None:
            with lock:
                shutil.rmtree(path, ignore_errors=True)
