"""Lines of code in the words of a report."""

from __future__ import annotations

import os


def relative(source: str) -> str:
    """A path with its line, relative to the working directory where that is shorter."""
    path, colon, line = source.rpartition(":")
    if not (colon and path and line.isdigit()):
        return source  # no place in a file: "the backward pass"
    shorter = os.path.relpath(path)
    return f"{shorter if len(shorter) < len(path) else path}:{line}"
