"""Reads and writes the file of relations, which are found on healthy Runs and asserted later.

The file is text, so that users can review it.  Its first line names the format.  After comments,
it has one line for each program and relation:

    # pytest-trainsafe relations, format 1
    package.module:train | order | holds | dp=2 microbatches=4; a single device
    package.module:train | split | does not hold | loss · loss · step 0 · micro-batch 0

The last field lists Points at which the relation held, or the first difference if it did not hold.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_trainsafe.core.untrusted import read_file
from pytest_trainsafe.core.usage import shown
from pytest_trainsafe.errors import ArgumentError

FORMAT = "# pytest-trainsafe relations, format 1"

HEADER = (
    f"{FORMAT}\n"
    "# Metamorphic relations that hold for programs, found on healthy Runs by\n"
    "# pytest --trainsafe-learn. Review changes; a line that does not hold is not asserted.\n"
)

HOLDS, FAILS = "holds", "does not hold"

#: Maximum bytes of a file.
MAX_BYTES = 2**20

#: Maximum number of points that a line lists.
MAX_POINTS = 8


@dataclass(frozen=True, slots=True)
class Kept:
    """One line of a file of relations: whether a relation holds for a program.

    `program` is the program's name, and `relation` the name of the metamorphic relation.  `holds`
    says whether it held at every Point where it was tried.  `where` lists such Points, separated by
    "; ", or describes the first difference.
    """

    program: str
    relation: str
    holds: bool
    where: str

    def line(self) -> str:
        """The text of this line, such as "module:train | order | holds | dp=2"."""
        return f"{self.program} | {self.relation} | {HOLDS if self.holds else FAILS} | {self.where}"


def read_kept(path: Path) -> list[Kept]:
    """The lines of a file of relations, except comments.

    Raises ArgumentError for a file that is missing or damaged.
    """
    try:
        text = read_file(path, max_bytes=MAX_BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text in UTF-8"
        raise ArgumentError(
            f"the file of relations {path} cannot be read ({why}); pytest --trainsafe-learn writes "
            "it, for tests whose marker has healthy=True"
        ) from error
    lines = text.splitlines()
    if lines and lines[0] != FORMAT:
        raise ArgumentError(
            f"{path} does not begin with {FORMAT!r}, but with {shown(lines[0])}: it is not a file "
            "of relations, or has another version. Remove it and run pytest --trainsafe-learn"
        )
    return [
        _parsed(path, number, line)
        for number, line in enumerate(lines, start=1)
        if line.strip() and not line.startswith("#")
    ]


def _parsed(path: Path, number: int, line: str) -> Kept:
    fields = [field.strip() for field in line.split("|", 3)]
    if len(fields) != 4 or fields[2] not in (HOLDS, FAILS) or not (fields[0] and fields[1]):
        raise ArgumentError(
            f"{path} line {number} is damaged: {shown(line)}. A line is "
            f"'program | relation | {HOLDS} | points', or '{FAILS}' in the third field; correct "
            "it, or remove it and run pytest --trainsafe-learn"
        )
    return Kept(fields[0], fields[1], fields[2] == HOLDS, fields[3])


def add_found(path: Path, found: Iterable[Kept]) -> None:
    """Adds the results of one Point to a file of relations; safe for concurrent processes.

    A relation that failed at one Point is kept as failing; remove its line to try it again.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    with os.fdopen(descriptor, "r+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed
        known = {(kept.program, kept.relation): kept for kept in read_kept(path)}
        for each in found:
            key = each.program, each.relation
            known[key] = _joined(known.get(key), each)
        lines = "".join(f"{known[key].line()}\n" for key in sorted(known))
        file.seek(0)
        file.truncate()
        file.write(HEADER + lines)


def _joined(before: Kept | None, now: Kept) -> Kept:
    if before is None:
        return now
    if not (before.holds and now.holds):
        return now if before.holds else before
    points = dict.fromkeys((*before.where.split("; "), now.where))
    return Kept(now.program, now.relation, True, "; ".join([*points][-MAX_POINTS:]))


def kept_of(path: Path, program: str, known: Mapping[str, object]) -> Sequence[Kept]:
    """The lines of a file of relations that are about the program with the name `program`.

    `known` has the relations that the program or the test offers, by name.  Raises ArgumentError if
    no line says that a relation holds, or if such a line names a relation that is not in `known`.
    """
    lines = [kept for kept in read_kept(path) if kept.program == program]
    if not any(kept.holds for kept in lines):
        raise ArgumentError(
            f"{path} has no relation that holds for {program}, so the test checks nothing; run "
            "pytest --trainsafe-learn with healthy=True in the test's marker to find relations"
        )
    unknown = next((kept for kept in lines if kept.holds and kept.relation not in known), None)
    if unknown is not None:
        raise ArgumentError(
            f"{path} lists the relation {shown(unknown.relation)} for {program}, but neither the "
            f"program nor the test offers it; known relations: {', '.join(known) or 'none'}. "
            "Pass the relation in `candidates`, or remove the line"
        )
    return lines
