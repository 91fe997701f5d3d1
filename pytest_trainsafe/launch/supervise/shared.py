"""What ranks that share a process tell the supervisor, beside each rank's own files.

The process writes two files into the group's folder: `turn` has the number of the rank that runs,
which is the one that died if the process dies, and `stuck` has sentences that say why no rank can
go on.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Sequence
from pathlib import Path

import msgspec

from pytest_trainsafe.core.untrusted import MALFORMED, read_file
from pytest_trainsafe.launch.files import write_whole

_FORM = struct.Struct("<q")
_MAX_STUCK = 2**20


class TurnFile:
    """The process's side: notes whose turn it is, without a system call."""

    def __init__(self, group: Path) -> None:
        fd = os.open(group / "turn", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            # Allocate the page now: with a full disk, its first access would raise SIGBUS.
            os.write(fd, bytes(_FORM.size))
            self._memory = mmap.mmap(fd, _FORM.size)
        finally:
            os.close(fd)

    def write(self, rank: int) -> None:
        """Notes that it is this rank's turn."""
        _FORM.pack_into(self._memory, 0, rank)


def write_stuck(group: Path, why: Sequence[str]) -> None:
    """Tells the supervisor that no rank can go on; `why` are sentences."""
    write_whole(group / "stuck", msgspec.json.encode(list(why)))


class SharedProcess:
    """The supervisor's side: reads what the process of a group wrote into the folder `group`."""

    def __init__(self, group: Path) -> None:
        self._group = group

    def turn(self) -> int:
        """The rank that runs, or ran last; 0 if that is unknown."""
        try:
            content = read_file(self._group / "turn", below=self._group, max_bytes=_FORM.size)
            return int(_FORM.unpack(content)[0])
        except (OSError, struct.error):
            return 0

    def stuck(self) -> tuple[str, ...] | None:
        """Why no rank can go on; None while one can."""
        try:
            content = read_file(self._group / "stuck", below=self._group, max_bytes=_MAX_STUCK)
            return tuple(msgspec.json.decode(content, type=list[str]))
        except (OSError, *MALFORMED):
            return None
