"""Notes what a rank and the processes that it forks read, and hands it over."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from pytest_trainsafe.core.code_files import loaded_files
from pytest_trainsafe.core.cut_text import is_encodable
from pytest_trainsafe.core.untrusted import MALFORMED, read_file
from pytest_trainsafe.record.reads import variables
from pytest_trainsafe.record.reads.files import Files
from pytest_trainsafe.record.reads.notes import (
    EVERY_VARIABLE,
    LIMIT,
    Notes,
    above,
    merged,
    stamp,
    too_many,
)

#: The most bytes that the notes of forked processes take.
_MAX_BYTES = 2**25


class Noting:
    """The notes of this process, and of the processes that it forks.

    A forked process, such as a worker of a data loader, appends each of its notes to the file
    `forked`.
    """

    def __init__(self, forked: Path) -> None:
        self._forked = forked
        self._process = os.getpid()
        self._reads: dict[str, tuple[int, str]] = {}
        self._writes: dict[str, int] = {}
        self._variables: set[str] = set()
        self._incomplete = ""

    @contextlib.contextmanager
    def noted(self, own: tuple[str, ...]) -> Iterator[None]:
        """Notes what is read in this context, except for files below the folders `own`."""
        with Files(self, own).noted(), variables.noted(self.variable):
            yield

    def read(self, path: str) -> None:
        """Implements `FileNotes`."""
        if path in self._reads or path in self._writes or self._incomplete:
            return
        self._reads[path] = found = (time.monotonic_ns(), stamp(path))
        self._added(Notes(reads={path: found}), len(self._reads))

    def written(self, path: str) -> None:
        """Implements `FileNotes`."""
        # What lies in a folder that the Run made needs no note of its own.
        if self._incomplete or any(each in self._writes for each in (path, *above(path))):
            return
        self._writes[path] = when = time.monotonic_ns()
        self._added(Notes(writes={path: when}), len(self._writes))

    def moved(self, before: str, after: str) -> None:
        """Implements `FileNotes`: what the Run wrote is also its own under another name."""
        if any(each in self._writes for each in (before, *above(before))):
            self.written(after)
        for path in [each for each in self._writes if each.startswith(f"{before}{os.sep}")]:
            self.written(after + path[len(before) :])

    def variable(self, name: str) -> None:
        """Notes an environment variable, or EVERY_VARIABLE."""
        if self._incomplete or {name, EVERY_VARIABLE} & self._variables:
            return
        self._variables.add(name)
        self._added(Notes(variables=(name,)), len(self._variables))

    def fail(self, error: Exception) -> None:
        """Implements `FileNotes`."""
        if not self._incomplete:
            self._leave_off(f"an opened file could not be noted ({type(error).__name__})")

    def notes(self) -> Notes:
        """All notes so far."""
        own = Notes(
            loaded=tuple(loaded_files()),
            reads=dict(self._reads),  # a thread of the program may still open files
            writes=dict(self._writes),
            variables=tuple(self._variables),
        )
        told = Notes(incomplete=self._incomplete) if self._incomplete else own
        return merged([told, *self._of_forked()])

    def _of_forked(self) -> list[Notes]:
        try:
            lines = read_file(self._forked, max_bytes=_MAX_BYTES).splitlines()
            return [msgspec.json.decode(line, type=Notes) for line in lines]
        except FileNotFoundError:
            return []
        except (OSError, *MALFORMED):
            return [Notes(incomplete="the notes of forked processes cannot be read")]

    def _added(self, note: Notes, count: int) -> None:
        if count > LIMIT:
            self._leave_off(too_many())
        elif os.getpid() != self._process:
            self._tell(note)
        elif not all(map(is_encodable, (*note.reads, *note.writes, *note.variables))):
            self._leave_off("the name of a file or variable is not valid UTF-8")

    def _leave_off(self, why: str) -> None:
        self._incomplete = why
        if os.getpid() != self._process:
            self._tell(Notes(incomplete=why))

    def _tell(self, note: Notes) -> None:
        """Appends a note to the file of forked processes; each is written by one call."""
        try:
            line = msgspec.json.encode(note) + b"\n"
        except UnicodeEncodeError:
            line = msgspec.json.encode(Notes(incomplete="a name is not valid UTF-8")) + b"\n"
        file = os.open(self._forked, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(file, line)
        finally:
            os.close(file)
