"""Notes the environment variables that the project's code reads through `os.environ`."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from pytest_trainsafe.core.code_files import owner_of
from pytest_trainsafe.core.rank.state import replacing
from pytest_trainsafe.record.reads.notes import EVERY_VARIABLE

_STDLIB = sysconfig.get_path("stdlib") + os.sep

#: Modules of the standard library that read a variable on behalf of their caller: `os.getenv`,
#: `os.path.expandvars`, `Path.expanduser`, `string.Template`, `collections.ChainMap`.
_PASSING = (
    *("os.py", "_collections_abc.py", "posixpath.py", "genericpath.py", "pathlib"),
    *("string", "re/", "collections/", "copy.py"),
)


@contextlib.contextmanager
def noted(note: Callable[[str], None]) -> Iterator[None]:
    """Calls `note` with the name of each variable that the project's code reads in this context.

    The name is EVERY_VARIABLE if the code iterates over the environment.  What libraries read is
    not noted.
    """
    kind: Any = type(os.environ)
    get, walk = kind.__getitem__, kind.__iter__

    @functools.wraps(get)
    def getitem(self: object, key: object) -> object:
        if isinstance(key, str | bytes) and _is_projects(sys._getframe(1)):
            note(os.fsdecode(key))
        return get(self, key)

    @functools.wraps(walk)
    def iterate(self: object) -> object:
        if _is_projects(sys._getframe(1)):
            note(EVERY_VARIABLE)
        return walk(self)

    for name in ("__getitem__", "__iter__"):
        replacing(kind, name)
    kind.__getitem__, kind.__iter__ = getitem, iterate
    try:
        yield
    finally:
        kind.__getitem__, kind.__iter__ = get, walk


def _is_projects(frame: FrameType | None) -> bool:
    """Whether the project's code reads the variable: itself, or by the modules in `_PASSING`."""
    while frame is not None:
        file = frame.f_code.co_filename
        owner = owner_of(file)
        # "none" are frozen modules, such as `os` itself, and code that a program executes.
        if owner != "none" and not (
            owner == "python" and file.removeprefix(_STDLIB).startswith(_PASSING)
        ):
            return owner == "project"
        frame = frame.f_back
    return False
