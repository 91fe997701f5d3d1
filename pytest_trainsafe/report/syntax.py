"""The syntax of the tested program's files, of which reports show functions and lines."""

from __future__ import annotations

import ast
import os
from functools import lru_cache
from pathlib import Path

from pytest_trainsafe.core.untrusted import read_file

#: The most bytes of a file that is parsed.
MOST = 400_000

Function = ast.FunctionDef | ast.AsyncFunctionDef


def syntax_of(content: bytes) -> ast.Module:
    """The syntax of a file's content; an empty one if it cannot be parsed, or is too large."""
    if len(content) > MOST:
        return ast.Module([], [])
    try:
        return ast.parse(content)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])


def parsed(path: str) -> ast.Module:
    """The syntax of a file, which nothing may change; an empty one if it cannot be read."""
    try:
        known = os.stat(path)
    except (OSError, ValueError):
        return ast.Module([], [])
    return _parsed(path, known.st_mtime_ns, known.st_size)


@lru_cache(maxsize=32)
def _parsed(path: str, _changed: int, _size: int) -> ast.Module:
    """The syntax of a version of a file; what is shown of one failure asks for few files often."""
    try:
        return syntax_of(read_file(Path(path), max_bytes=MOST))
    except (OSError, ValueError):
        return ast.Module([], [])
