"""Lines of the tested program around a "file:line", as a panel."""

from __future__ import annotations

from pathlib import Path

from pytest_trainsafe.core.code_files import relative
from pytest_trainsafe.core.untrusted import read_file
from pytest_trainsafe.printable import printable
from pytest_trainsafe.report.panels import Code
from pytest_trainsafe.report.sections import label

#: The number of lines before and after the one that matters.
AROUND = 6

#: The most bytes of a file of which lines are shown, and the most characters of a line.
_MOST, _LINE = 2_000_000, 200


def code_at(place: str, title: str, note: str = "") -> Code | None:
    """The lines around a "file:line"; None if they cannot be read."""
    path, _, digits = place.rpartition(":")
    if not path or not digits.isdecimal() or len(digits) > 7:
        return None
    try:
        content = read_file(Path(path), max_bytes=_MOST)
    except (OSError, ValueError):
        return None
    lines = content.decode("utf-8", "backslashreplace").splitlines()
    at = int(digits)
    if not 1 <= at <= len(lines):
        return None
    first = max(1, at - AROUND)
    shown = lines[first - 1 : at + AROUND]
    return Code(
        title=title,
        file=label(f"{relative(path)}:{at}"),
        first=first,
        lines=tuple(printable(each[:_LINE].expandtabs(4))[:_LINE] for each in shown),
        marked=at,
        note=note,
    )
