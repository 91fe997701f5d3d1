"""The files of a group: where a rank writes and its supervisor reads.

task.msgpack                 the Task
launcher.log                 what torchrun, or the process that forks the ranks, said
rank0/stdout.txt stderr.txt  what the program printed
rank0/started                the rank's process id; the program begins
rank0/ledger.jsonl           the rank's collectives, one a line, written before each call
rank0/blocked                which of those calls the rank is inside of: `blocked`
rank0/flight.json            torch's flight record of the rank, whole or absent
rank0/ask                    a pipe: a byte in it asks for flight.json; gone with the group
rank0/tmp                    sockets of multiprocessing or a link to them; gone with the group
rank0/stacks.txt             Python stacks, dumped on SIGUSR1 and SIGTERM
rank0/result.msgpack         the Outcome, whole or absent
rank0/imported.json          what a forked rank had to import of installed packages
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import msgspec

#: Exit code of a rank that could not write its outcome (EX_IOERR of sysexits.h).
CANNOT_WRITE = 74

#: Begins the line in which such a rank tells its outcome through torchrun's pipe instead.
LAST_WORDS = "pytest-trainsafe-last-words "


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a rank's program ended, as the rank tells it.  `at` is the system's monotonic clock."""

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
        """Write the outcome whole; raises OSError where the disk does not take it."""
        write_whole(self.result, msgspec.msgpack.encode(outcome))

    def read_outcome(self) -> Outcome | None:
        """The outcome, or None while there is none."""
        try:
            return msgspec.msgpack.decode(self.result.read_bytes(), type=Outcome)
        except FileNotFoundError:
            return None

    def read_pid(self) -> int | None:
        """The rank's process id, or None before its program began."""
        try:
            return int(self.started.read_text())
        except FileNotFoundError:
            return None


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that is either absent or complete to whoever reads it."""
    unfinished = path.with_name(path.name + ".unfinished")
    unfinished.write_bytes(content)
    os.replace(unfinished, path)


#: Begins the line that says how much of a file `read_end` left out.
CUT = "[... "


def read_end(path: Path, limit: int = 8000) -> str:
    """The last `limit` bytes of a text file, after a line that says how much was left out.

    From the start of a line where there is one; "" if there is no file.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - limit))
            text = file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
    if size <= limit:
        return text
    _, newline, whole = text.partition("\n")
    return f"{CUT}{size - limit} bytes before this are in {path.name} ...]\n" + (
        whole if newline and whole else text
    )
