"""Reads the output of a rank for a report: the start and the end of its file, never all of it.

Called for the sections of pytest's reports (`report/run/rank_output.py`).
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from pytest_trainsafe.core.untrusted import BadFileError, open_file

#: The most bytes that are kept of the start and of the end of a stream.
HEAD, TAIL = 2_000, 6_000

#: torch looks up the name of the loopback address, and warns if no name server answers.
_NAMELESS = (
    r"^\[W[^\n]*socket\.cpp:\d+\] \[c10d\] The hostname of the client socket cannot be retrieved"
)
_ANY_ERROR = re.compile(rf"{_NAMELESS}[^\n]*\n", re.MULTILINE)
_NO_SERVER = re.compile(rf"{_NAMELESS}\. err=-3(\n|\Z)", re.MULTILINE)


def without_nameless(text: str, *, any_error: bool = False) -> str:
    """The output of a rank without torch's warning that no name server answers.

    With `any_error`, also without the same warning for any other reason.
    """
    return (_ANY_ERROR if any_error else _NO_SERVER).sub("", text)


def read_ends(
    path: Path, note: str = "", without: str = "", head: int = HEAD, tail: int = TAIL
) -> str:
    """The first `head` and the last `tail` bytes of a text file; all of it if it has no more.

    Of a longer file only whole lines are kept, unless a line is longer.  A line between the two
    says how many bytes are left out, and `note`, or which file has them without one.  If the file
    ends with the text `without`, this text is ignored.  `path` is in a rank's folder, which must
    not be a link.  The result is "" if there is no file, and a sentence if the path is not a
    regular file.
    """
    try:
        with os.fdopen(open_file(path, below=path.parent.parent), "rb", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            ignored = without.encode("utf-8", "replace")
            if ignored and _read(file.fileno(), size - len(ignored), len(ignored)) == ignored:
                size -= len(ignored)
            if size <= head + tail:
                return without_nameless(_read(file.fileno(), 0, size).decode("utf-8", "replace"))
            start = _read(file.fileno(), 0, head)
            end = _read(file.fileno(), size - tail, tail)
    except BadFileError as error:
        return f"({path.name} cannot be read: {error.strerror})"
    except OSError:
        return ""
    start = start[: start.rfind(b"\n") + 1] or start + b"\n"
    end = end[end.find(b"\n") + 1 :] or end
    cut = size - len(start) - len(end)
    where = note or f"{path} has all of them"
    between = f"[... {cut:,} of {size:,} bytes are left out; {where} ...]\n"
    first, last = (without_nameless(each.decode("utf-8", "replace")) for each in (start, end))
    return first + between + last


def _read(descriptor: int, offset: int, length: int) -> bytes:
    return os.pread(descriptor, length, offset) if offset >= 0 else b""
