"""Notes the files that this process opens, from the audit events of Python.

Code that does not open files through Python (safetensors, pyarrow, sqlite) raises no such events.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import stat
import sys
from collections.abc import Iterator
from typing import Protocol

from pytest_trainsafe.compat.files import noted_saves
from pytest_trainsafe.core.code_files import is_project_path
from pytest_trainsafe.core.rank.state import keep_per_rank

#: Folders whose files the kernel makes, which are no data of the project; and the folder in memory
#: among them, in which a project may keep data.
_KERNEL, _MEMORY = ("/proc/", "/sys/", "/dev/"), "/dev/shm/"

_BYTECODE = f"{os.sep}__pycache__{os.sep}"


class FileNotes(Protocol):
    """Receives absolute paths."""

    def read(self, path: str) -> None:
        """A regular file is opened for reading, or a file that does not exist."""

    def written(self, path: str) -> None:
        """A file is opened for writing, or a folder is made."""

    def moved(self, before: str, after: str) -> None:
        """A file or folder gets another path."""

    def fail(self, error: Exception) -> None:
        """An event could not be noted."""


_active: Files | None = None
_installed = False
keep_per_rank(__name__, "_active")


class Files:
    """Passes the files that this process opens to `notes`, except those below the folders `own`."""

    def __init__(self, notes: FileNotes, own: tuple[str, ...]) -> None:
        self._notes = notes
        self._own = tuple(f"{folder}{os.sep}" for folder in own)
        self._counts = functools.lru_cache(maxsize=65536)(self._is_counted)

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Notes files in this context.  Contexts must not be nested."""
        global _active, _installed
        if not _installed:  # an audit hook cannot be removed
            sys.addaudithook(_audit)
            _installed = True
        _active = self
        try:
            with noted_saves(self.saved):
                yield
        finally:
            _active = None

    def opened(self, path: object, mode: object, flags: object) -> None:
        """Handles an event "open"; `mode` is None for `os.open`."""
        name = _absolute(path)
        if name is None or not self._counts(name):
            return
        bits = flags if isinstance(flags, int) else 0
        creates = bits & (os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        if creates or (isinstance(mode, str) and set(mode) & set("wxa")):
            if _BYTECODE not in name:
                self._notes.written(name)
            return
        # What is opened for both reading and writing ("r+") is an input too.
        if name.endswith(".pyc"):
            with contextlib.suppress(ValueError):  # bytecode without a source is an input itself
                name = importlib.util.source_from_cache(name)
        if not _is_special(name):
            self._notes.read(name)

    def made(self, path: object) -> None:
        """Handles an event "os.mkdir", which also an attempt to make an existing folder raises."""
        name = _absolute(path)
        if name is None or not self._counts(name) or _BYTECODE in f"{name}{os.sep}":
            return
        if not os.path.lexists(name):
            self._notes.written(name)

    def renamed(self, before: object, after: object) -> None:
        """Handles an event "os.rename"."""
        old, new = _absolute(before), _absolute(after)
        if old is not None and new is not None:
            self._notes.moved(old, new)

    def failed(self, error: Exception) -> None:
        """Handles an error of this class."""
        self._notes.fail(error)

    def saved(self, path: object) -> None:
        """Handles a file that torch writes itself."""
        name = _absolute(path)
        if name is not None and self._counts(name):
            self._notes.written(name)

    def _is_counted(self, path: str) -> bool:
        if path.startswith(self._own) or not is_project_path(path):
            return False
        return path.startswith(_MEMORY) or not path.startswith(_KERNEL)


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    active = _active
    if active is None:
        return
    try:
        if event == "open":
            active.opened(*arguments[:3])
        elif event == "os.mkdir":
            active.made(arguments[0])
        elif event == "os.rename":
            active.renamed(*arguments[:2])
    except Exception as error:  # an exception would stop the program's own call
        active.failed(error)


def _absolute(path: object) -> str | None:
    """The absolute path; None if it is no path but a file descriptor.

    `..` stays where it is, since the folder before it may be a link.
    """
    if not isinstance(path, str | bytes | os.PathLike):
        return None
    name = os.fsdecode(path)
    if not os.path.isabs(name):
        name = os.path.join(os.getcwd(), name)
    return name if os.pardir in name else os.path.normpath(name)


def _is_special(path: str) -> bool:
    """Whether there is something at a path that is not a regular file, such as a folder."""
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False
