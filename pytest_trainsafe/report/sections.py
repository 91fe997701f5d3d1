"""Collects the Sections of the running test for the page of `--trainsafe-report`.

Judges and the plugin add Sections while a test runs, and the test's reports carry them as JSON to
the process that reports, also from workers of pytest-xdist.  Without the option nothing is
collected, and judges make no panels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_trainsafe.core.cut_text import cut
from pytest_trainsafe.printable import printable

if TYPE_CHECKING:
    import pytest

    from pytest_trainsafe.report.panels import Section

#: The most Sections of one test: a fuzz test judges many Points.
MOST_SECTIONS = 12

#: The attribute of pytest's reports that has a test's Sections.
ATTRIBUTE = "trainsafe_sections"

_ORDER = {"error": 0, "fail": 0, "inconclusive": 1, "pass": 2}

#: The Sections of the running test; None if none are collected.
_found: list[Section] | None = None


def begin() -> None:
    """Begins to collect the Sections of a test."""
    global _found
    _found = []


def end() -> None:
    """Ends to collect, and forgets what was collected."""
    global _found
    _found = None


def collecting() -> bool:
    """Whether this run makes a page, so that judges keep what they draw."""
    return _found is not None


def add(section: Section) -> None:
    """Adds a Section to those of the running test.

    Of those of one kind the first is kept, and of more than MOST_SECTIONS those that fail.
    """
    if _found is None:
        return
    kind = section.distinct, section.judge, section.verdict
    if kind[0] and kind in [(each.distinct, each.judge, each.verdict) for each in _found]:
        return
    _found.append(section)
    if len(_found) > MOST_SECTIONS:
        _found.sort(key=lambda each: _ORDER[each.verdict])  # stable
        del _found[MOST_SECTIONS:]


def collected() -> tuple[Section, ...]:
    """The Sections of the running test so far."""
    return tuple(_found or ())


def attach(report: pytest.TestReport) -> None:
    """Adds the Sections collected so far to a test's report, as JSON, and forgets them."""
    if not _found:
        return
    import msgspec

    vars(report)[ATTRIBUTE] = msgspec.json.encode([_checked(each) for each in _found]).decode()
    _found.clear()


def _checked(section: Section) -> Section:
    """The Section with printable texts; without its panels and notes if these exceed a limit."""
    import msgspec

    from pytest_trainsafe.report.panels import LABEL, TEXT, Section

    plain = msgspec.structs.replace(
        section,
        judge=label(section.judge, LABEL),
        what=label(section.what, LABEL),
        text=printable(section.text[:TEXT])[:TEXT],
        distinct=label(section.distinct, LABEL),
    )
    try:
        return msgspec.convert(printable_data(msgspec.to_builtins(plain)), Section)
    except msgspec.ValidationError as error:
        return msgspec.structs.replace(plain, panels=(), notes=(f"no panels: {label(error)}",))


def printable_data(value: object) -> object:
    """Plain data whose texts are printable; control characters are escaped, as on a terminal."""
    if isinstance(value, str):
        return value if value.isprintable() else printable(value)
    if isinstance(value, dict):
        return {key: printable_data(each) for key, each in value.items()}
    return [printable_data(each) for each in value] if isinstance(value, list | tuple) else value


def label(text: object, most: int = 300) -> str:
    """A text that a program chose as a label: one printable line of at most `most` characters.

    Of a longer text the start and the end are kept: a path is known by its end.
    """
    shown = printable(cut(str(text), 4 * most)).replace("\n", " ")
    if len(shown) <= most:
        return shown
    head = most * 2 // 3
    return f"{shown[:head]}…{shown[head + 1 - most :]}"
