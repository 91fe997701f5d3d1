"""The data of a page: every judged Point with its Sections, and the runs that judged them.

A Document is stored beside its page, so that the pages of several shards can be merged.  Such a
file may come from a job that ran untrusted code, so its size and all its values are checked.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from pytest_trainsafe.core.untrusted import MALFORMED, read_file
from pytest_trainsafe.core.usage import excerpt, shown
from pytest_trainsafe.errors import SettingError
from pytest_trainsafe.report.panels import Label, Section, Text
from pytest_trainsafe.report.run.outcome import Outcome

Format = Literal["pytest-trainsafe report 1"]
FORMAT: Format = "pytest-trainsafe report 1"

#: The files of a page's folder: the page, and its data.
PAGE, DATA = "index.html", "report.json"

#: The most bytes of the data of a page, and the most Points.
MOST_BYTES, MOST_ENTRIES = 2**27, 100_000

#: What stands for infinity, which JSON does not have.
INFINITE = sys.float_info.max

_Seconds = Annotated[dict[Label, float], msgspec.Meta(max_length=100)]
_Labels = Annotated[dict[Label, Label], msgspec.Meta(max_length=200)]


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run of pytest: its settings that differ from the defaults, versions, and what it skipped.

    `options` are those that a command needs to run a test again with the same settings.
    """

    settings: _Labels
    versions: _Labels
    options: Text
    seconds: float
    skipped: Annotated[dict[Label, int], msgspec.Meta(max_length=10_000)]


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One test at one Point: its Outcome, its Sections, and the number of its run.

    `stages` has the seconds by stage, and `rerun` the command that runs the test again.
    """

    outcome: Outcome
    sections: tuple[Section, ...]
    run: int
    stages: _Seconds
    notes: Annotated[tuple[Text, ...], msgspec.Meta(max_length=200)]
    rerun: Text


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """The data of a page."""

    format: Format = FORMAT
    runs: Annotated[tuple[Run, ...], msgspec.Meta(max_length=2_000)]
    entries: Annotated[tuple[Entry, ...], msgspec.Meta(max_length=MOST_ENTRIES)]


def encoded(document: Document) -> bytes:
    """The Document as JSON."""
    return msgspec.json.encode(document)


def read_document(folder: Path) -> Document:
    """The Document in the folder of a page.  Raises SettingError if there is none."""
    path = folder / DATA
    try:
        content = read_file(path, max_bytes=MOST_BYTES)
        return msgspec.json.decode(content, type=Document)
    except OSError as error:
        reason = excerpt(str(error.strerror or error), 200)
    except (*MALFORMED, msgspec.ValidationError) as error:
        reason = excerpt(str(error), 200)
    raise SettingError(
        f"{shown(str(path))} cannot be read: {reason}; pass directories that --trainsafe-report of "
        "this version has written"
    )


def merged(documents: Iterable[Document]) -> Document:
    """One Document of several runs; a Point that several runs judged has an entry for each.

    The order of the entries depends only on the tests, not on the run that judged them, so shards
    give the same page as one run.
    """
    runs: list[Run] = []
    entries: list[Entry] = []
    for document in documents:
        entries += [
            msgspec.structs.replace(entry, run=min(entry.run + len(runs), 10**6))
            for entry in document.entries
        ]
        runs += document.runs
    entries.sort(key=lambda entry: (_natural(entry.outcome.nodeid), entry.run))
    return Document(runs=tuple(runs), entries=tuple(entries))


def finite(outcome: Outcome) -> Outcome:
    """The Outcome with INFINITE in place of infinity."""
    first = replace(
        outcome.first, error=_bounded(outcome.first.error), allowed=_bounded(outcome.first.allowed)
    )
    return replace(outcome, worst=_bounded(outcome.worst), first=first)


def _bounded(value: float | None) -> float | None:
    if value is None or math.isnan(value):
        return None
    return max(-INFINITE, min(INFINITE, value))


def _natural(text: str) -> list[tuple[int, str]]:
    """A sort key by which tp2 comes before tp10."""
    return [(int(part), "") if part.isdecimal() and len(part) < 10 else (0, part)
            for part in re.split(r"([0-9]+)", text)]  # fmt: skip
