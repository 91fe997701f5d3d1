"""Where a class is defined.  Called by the recorder, in every rank, for each class of module."""

from __future__ import annotations

import functools
import inspect
import linecache
import re


@functools.cache
def source_of(cls: type) -> str:
    """`file:line` of a class; "" where it was made at run time or in a C extension."""
    try:
        file = inspect.getsourcefile(cls)
        return f"{file}:{_only_line(cls, file or '') or inspect.getsourcelines(cls)[1]}"
    except (OSError, TypeError):
        return ""


def _only_line(cls: type, file: str) -> int | None:
    """The number of the line that defines the class, where only one line can; else None.

    `inspect` parses the whole file for each class, which takes a rank longer than a step.
    """
    lines = linecache.getlines(file)
    defines = re.compile(rf"\s*class\s+{re.escape(cls.__name__)}\b")
    found = [number for number, line in enumerate(lines, start=1) if defines.match(line)]
    # A decorated class begins at its first decorator, wherever that is.
    if len(found) != 1 or (found[0] > 1 and not _apart(lines[found[0] - 2])):
        return None
    return found[0]


def _apart(line: str) -> bool:
    """Whether a line cannot be the end of a decorator of what follows it."""
    return not line.strip() or line.lstrip().startswith("#")
