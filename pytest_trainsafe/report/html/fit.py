"""Leaves out panels until a Document fits a page, which a browser must open quickly.

Maps of values are left out first, then the panels of passing Points, then those of failures that
other Points share.  What is left out is said in the Section.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from pytest_trainsafe.report.html.document import Document, Entry
from pytest_trainsafe.report.panels import Maps, Panel, Section
from pytest_trainsafe.report.run.families import families

#: The most bytes of the data of a page; the scripts and styles add some 60 kB.
MOST = 18_000_000


def fitted(document: Document, most: int = MOST) -> Document:
    """The Document with at most `most` bytes, as far as leaving out panels achieves this."""
    size = len(msgspec.json.encode(document))
    if size <= most:
        return document
    leads = {family.lead.nodeid for family in families([e.outcome for e in document.entries])}
    entries = [*document.entries]
    for number, keeps in _orders(entries, leads):
        if size <= most:
            break
        entry = entries[number]
        smaller = msgspec.structs.replace(
            entry, sections=tuple(_without(each, keeps) for each in entry.sections)
        )
        size -= len(msgspec.json.encode(entry)) - len(msgspec.json.encode(smaller))
        entries[number] = smaller
    return msgspec.structs.replace(document, entries=tuple(entries))


def _orders(entries: list[Entry], leads: set[str]) -> Iterator[tuple[int, Callable[[Panel], bool]]]:
    """The entries from which panels are left out, in order, each with which panels it keeps."""
    last = range(len(entries) - 1, -1, -1)
    lead = {number for number in last if entries[number].outcome.nodeid in leads}
    passing = {number for number in last if entries[number].outcome.verdict == "pass"}
    for number in last:
        if number not in lead:
            yield number, lambda panel: not isinstance(panel, Maps)
    for number in last:
        if number in passing:
            yield number, lambda panel: False
    for number in last:
        if number not in lead:
            yield number, lambda panel: False
    for number in last:
        yield number, lambda panel: False


def _without(section: Section, keeps: Callable[[Panel], bool]) -> Section:
    kept = tuple(panel for panel in section.panels if keeps(panel))
    if len(kept) == len(section.panels):
        return section
    note = f"{len(section.panels) - len(kept)} panels are left out, because the page was too large"
    return msgspec.structs.replace(section, panels=kept, notes=(note, *section.notes[:199]))
