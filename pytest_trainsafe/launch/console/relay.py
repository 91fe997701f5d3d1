"""Relay: copies what the ranks of a group print to the console while they run.

The supervisor of a group has one if its Task says so.  Ranks write to files, and the relay reads
the files, so a rank never waits for the terminal, and a report has the same output.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path

from pytest_trainsafe.core.untrusted import open_file
from pytest_trainsafe.launch.console.console import Console
from pytest_trainsafe.launch.files import RankFiles
from pytest_trainsafe.launch.output import without_nameless
from pytest_trainsafe.printable import printable

#: Seconds between two looks at the files.
_POLL = 0.05
#: The most bytes that are read at once.  A longer line is split.
_CHUNK = 65536


class Relay:
    """Copies the output of ranks to a console, from its own thread, until `stop`.

    Each line begins with `[rank N]`, or with `[rank N, LABEL]` if the group has a label.
    """

    def __init__(self, console: Console, ranks: Sequence[RankFiles], label: str = "") -> None:
        self._console = console
        self._streams = [
            _Stream(path, f"[rank {files.rank}{', ' * bool(label)}{label}] ".encode())
            for files in ranks
            for path in (files.stdout, files.stderr)
        ]
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="trainsafe-relay", daemon=True)
        self._thread.start()

    def copy(self, *, last: bool = False) -> None:
        """Copies all whole lines that the ranks have written; if `last`, unfinished lines too."""
        with self._lock:
            for stream in self._streams:
                while lines := stream.read_lines():
                    self._console.write(stream.name, lines)
                if last and (lines := stream.rest()):
                    self._console.write(stream.name, lines)

    def stop(self) -> None:
        """Copies what is left, and ends the thread."""
        self._ended.set()
        self._thread.join()
        self.copy(last=True)
        for stream in self._streams:
            stream.close()

    def _follow(self) -> None:
        while not self._ended.wait(_POLL):
            self.copy()


class _Stream:
    """The lines of one file that grows, each with a prefix."""

    def __init__(self, path: Path, prefix: bytes) -> None:
        self.name = path.stem
        self._path = path
        self._prefix = prefix
        self._descriptor: int | None = None
        self._offset = 0
        self._unfinished = b""

    def read_lines(self) -> bytes:
        """The next whole lines; b"" if there is none yet."""
        if self._descriptor is None:
            try:
                self._descriptor = open_file(self._path, below=self._path.parent.parent)
            except OSError:  # not written yet
                return b""
        while chunk := os.pread(self._descriptor, _CHUNK, self._offset):
            self._offset += len(chunk)
            whole, newline, rest = (self._unfinished + chunk).rpartition(b"\n")
            self._unfinished = rest
            if newline:
                return self._prefixed(whole)
            if len(rest) > _CHUNK:
                return self.rest()
        return b""

    def rest(self) -> bytes:
        """What was read of an unfinished line, as a line."""
        line, self._unfinished = self._unfinished, b""
        return self._prefixed(line) if line else b""

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)

    def _prefixed(self, lines: bytes) -> bytes:
        text = printable(without_nameless(lines.decode("utf-8", "replace") + "\n"))
        return b"".join(
            self._prefix + line.encode("utf-8", "replace") + b"\n" for line in text.split("\n")[:-1]
        )
