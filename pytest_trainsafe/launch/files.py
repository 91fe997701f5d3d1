"""The files of a group: ranks write them, the supervisor reads them.

task.msgpack                 the Task
launcher.log                 output of torchrun, or of the process that forks the ranks
rank0/stdout.txt stderr.txt  output of the program
rank0/started                the rank's process id, written when the program begins
rank0/ledger.jsonl           the rank's collectives, one per line, written before each call
rank0/blocked                which of those calls has not returned: `collectives/blocked.py`
rank0/flight.json            torch's flight record of the rank, complete or absent
rank0/ask                    a pipe: a byte in it requests flight.json; removed with the group
rank0/tmp                    sockets of multiprocessing or a link to them; removed with the group
rank0/stacks.txt             Python stacks, dumped on SIGUSR1 and SIGTERM
rank0/result.msgpack         the Outcome, complete or absent
rank0/imported.json          installed modules that a forked rank had to import itself
"""

from __future__ import annotations

import math
import os
import re
import time
from pathlib import Path
from typing import Literal

import msgspec

from pytest_trainsafe.core.prepared import prepared
from pytest_trainsafe.core.untrusted import MALFORMED, BadFileError, open_file, read_file

#: Exit code of a rank that could not write its outcome (EX_IOERR of sysexits.h).
CANNOT_WRITE = 74

#: Prefix of the line by which such a rank sends its outcome through torchrun's pipe instead.
OUTCOME_PREFIX = "pytest-trainsafe-last-words "


#: Maximum sizes, in bytes, of a rank's result, of its list of modules, and of a small file.  They
#: limit the memory that the test process needs to decode these files.
MAX_RESULT, MAX_NAMES, MAX_SMALL = 2**30, 2**24, 2**16


@prepared
class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a rank's program ended, as the rank reports it.

    `at` is the time at which it ended, on the monotonic clock.
    """

    rank: int
    status: Literal["ok", "raised"]
    at: float
    value: bytes = b""
    error_type: str = ""
    error: str = ""
    traceback: str = ""


class RankFiles:
    """The files of one rank."""

    def __init__(self, group: Path, rank: int) -> None:
        self.rank = rank
        self.folder = group / f"rank{rank}"
        self.stdout = self.folder / "stdout.txt"
        self.stderr = self.folder / "stderr.txt"
        self.started = self.folder / "started"
        self.ledger = self.folder / "ledger.jsonl"
        self.blocked = self.folder / "blocked"
        self.flight = self.folder / "flight.json"
        self.ask = self.folder / "ask"
        self.temporary = self.folder / "tmp"
        self.stacks = self.folder / "stacks.txt"
        self.result = self.folder / "result.msgpack"
        self.imported = self.folder / "imported.json"

    def write_outcome(self, outcome: Outcome) -> None:
        """Writes the outcome atomically; raises OSError if it cannot be written.

        If a value is too large to be read back, writes an outcome with an error instead.
        """
        content = msgspec.msgpack.encode(outcome)
        if len(content) > MAX_RESULT:
            error = (
                f"rank {self.rank} returned {len(content)} bytes, but the limit is {MAX_RESULT}; "
                "write the value to a file and return the file's name"
            )
            large = Outcome(self.rank, "raised", outcome.at, error_type="ValueError", error=error)
            content = msgspec.msgpack.encode(large)
        write_whole(self.result, content)

    def read_outcome(self) -> Outcome | None:
        """The rank's outcome, or None while there is none.

        If the file is not a valid outcome of this rank, returns an outcome that says so as an
        error.
        """
        try:
            data = read_file(self.result, below=self.folder.parent, max_bytes=MAX_RESULT)
            outcome = msgspec.msgpack.decode(data, type=Outcome)
        except FileNotFoundError:
            return None
        except (OSError, *MALFORMED) as error:
            return self.unreadable(self.result, error)
        if outcome.rank != self.rank or not math.isfinite(outcome.at):
            return self.unreadable(self.result, f"it is not an outcome of rank {self.rank}")
        return outcome

    def unreadable(self, path: Path, error: Exception | str) -> Outcome:
        """An outcome with an error, for a rank whose file at `path` was replaced or damaged."""
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        return Outcome(
            rank=self.rank,
            status="raised",
            at=time.monotonic(),
            error_type="UnreadableFile",
            error=f"{path} cannot be read: {reason}. Only pytest-trainsafe may write this file; "
            "did the program overwrite or remove it?"[:2000],
        )

    def read_pid(self) -> int | None:
        """The rank's process id, or None before its program has begun."""
        try:
            data = read_file(self.started, below=self.folder.parent, max_bytes=MAX_SMALL)
        except OSError:
            return None
        return int(data) if re.fullmatch(rb"[1-9][0-9]{0,8}", data) else None

    def read_imported(self) -> list[str]:
        """The modules that a forked rank had to import; empty if it did not report any."""
        try:
            data = read_file(self.imported, below=self.folder.parent, max_bytes=MAX_NAMES)
            return msgspec.json.decode(data, type=list[str])
        except (OSError, *MALFORMED):
            return []


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file atomically: readers see it complete or not at all."""
    unfinished = path.with_name(path.name + ".unfinished")
    unfinished.write_bytes(content)
    os.replace(unfinished, path)


#: Prefix of the line that says how many bytes `read_end` left out.
CUT = "[... "


def read_end(path: Path, limit: int = 8000) -> str:
    """The last `limit` bytes of a text file, preceded by a line that says how much was left out.

    `path` is in a rank's folder, which must not be a link.  The text starts at the beginning of a
    line if possible.  It is "" if there is no file, and a note if the path is not a regular file.
    """
    try:
        with os.fdopen(open_file(path, below=path.parent.parent), "rb", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - limit))
            text = (file.read(limit) or b"").decode("utf-8", "replace")
    except BadFileError as error:
        return f"({path.name} cannot be read: {error.strerror})"
    except OSError:
        return ""
    if size <= limit:
        return text
    _, newline, whole = text.partition("\n")
    return f"{CUT}{size - limit} bytes before this are in {path.name} ...]\n" + (
        whole if newline and whole else text
    )
