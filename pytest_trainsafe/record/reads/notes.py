"""Notes: what the processes of one Run read, as data that ranks hand over."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from typing import Annotated

import msgspec

from pytest_trainsafe.core.prepared import prepared

#: The most files, folders and variables of each kind that are noted.
LIMIT = 4096

#: The longest path, as in Linux.
_LONGEST = 4096

#: The name that stands for the whole environment, which a program reads when it iterates over it.
EVERY_VARIABLE = ""

_Path = Annotated[str, msgspec.Meta(min_length=1, max_length=_LONGEST, pattern="^/[^\0]*$")]
_Stamp = Annotated[str, msgspec.Meta(pattern=r"^([0-9]{1,20}:-?[0-9]{1,20})?$")]
_Name = Annotated[str, msgspec.Meta(max_length=_LONGEST)]


@prepared
class Notes(msgspec.Struct, frozen=True, kw_only=True):
    """What the processes of a Run read and wrote.

    `loaded` has the project's files that were imported.  `reads` has for each file that was opened
    for reading the time before the first opening, and the file's stamp at that time; `writes` has
    for each file that was opened for writing, and each folder that was made, the time before that.
    Times are those of `time.monotonic_ns`, which all processes of a machine share.  `variables` has
    the names of the environment variables that the project's code read.  `incomplete` says why
    notes are missing; it is "" if there are all.
    """

    loaded: Annotated[tuple[_Path, ...], msgspec.Meta(max_length=16 * LIMIT)] = ()
    reads: Annotated[dict[_Path, tuple[int, _Stamp]], msgspec.Meta(max_length=LIMIT)] = {}
    writes: Annotated[dict[_Path, int], msgspec.Meta(max_length=LIMIT)] = {}
    variables: Annotated[tuple[_Name, ...], msgspec.Meta(max_length=LIMIT)] = ()
    incomplete: Annotated[str, msgspec.Meta(max_length=200)] = ""

    def inputs(self) -> dict[str, str]:
        """The stamp before the first reading of each file that the Run did not write itself.

        A file is the Run's own if, before the first reading, a process of the Run had opened it for
        writing or made a folder above it.
        """
        return {
            path: stamp
            for path, (when, stamp) in self.reads.items()
            if not any(self.writes.get(each, when) < when for each in (path, *above(path)))
        }


def merged(several: Iterable[Notes]) -> Notes:
    """The notes of several processes of one Run as one; the earliest time of each note counts."""
    loaded: set[str] = set()
    reads: dict[str, tuple[int, str]] = {}
    writes: dict[str, int] = {}
    variables: set[str] = set()
    incomplete = ""
    for each in several:
        loaded.update(each.loaded)
        variables.update(each.variables)
        for path, read in each.reads.items():
            reads[path] = min(read, reads.get(path, read))
        for path, when in each.writes.items():
            writes[path] = min(when, writes.get(path, when))
        incomplete = incomplete or each.incomplete
    if max(len(reads), len(writes), len(variables)) > LIMIT:
        return Notes(incomplete=incomplete or too_many())
    return Notes(
        loaded=tuple(sorted(loaded)),
        reads=reads,
        writes=writes,
        variables=tuple(sorted(variables)),
        incomplete=incomplete,
    )


def checked(values: Iterable[object]) -> Notes:
    """The notes that the ranks of a Run handed over, merged; incomplete if any are malformed."""
    try:
        return merged(msgspec.convert(value, Notes) for value in values)
    except (msgspec.ValidationError, RecursionError):
        return Notes(incomplete="the ranks did not say what the program reads")


def too_many() -> str:
    """Why notes beyond the limit are missing."""
    return f"the program opens more than {LIMIT} files or reads more than {LIMIT} variables"


def stamp(path: str) -> str:
    """Size and time of modification of a file; "" if it is not a readable regular file."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return ""
    return f"{status.st_size}:{status.st_mtime_ns}" if stat.S_ISREG(status.st_mode) else ""


def above(path: str) -> Iterator[str]:
    """The folders above a path, innermost first."""
    while (parent := os.path.dirname(path)) != path:
        yield parent
        path = parent
