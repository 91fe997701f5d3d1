"""A short path of a folder, for sockets in it: the path of a socket has at most 107 characters."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def short_path(folder: str | Path) -> Iterator[str]:
    """Yields a short path of the folder, valid in this process until the block ends."""
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)
