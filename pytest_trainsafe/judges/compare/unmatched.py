"""Finds annotations whose pattern matches nothing in the candidate's model.

Such a pattern is often a misspelling.  What it was meant for then has no annotation, and the report
names it beside the pattern.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from pytest_trainsafe.annotations.lines import place_of
from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.core.usage import nearest
from pytest_trainsafe.trace.facts import Annotations
from pytest_trainsafe.trace.reader import Trace

#: The layout source of proposed layouts, which no annotation gives.
PROPOSED = "a proposal"

#: The kinds of tensors that the entries of a section name; those of the others name modules.
_KINDS = {"parameters": "param", "buffers": "buffer"}


def unmatched(candidate: Trace) -> Iterator[Finding]:
    """A failing finding for each annotation that matches nothing on any rank."""
    for entry in _entries(candidate):
        pattern = entry.partition(": ")[2]
        hints = (nearest(pattern, _spelled(candidate, entry, known)) for known in (False, True))
        hint = next(filter(None, hints), ";")
        message = (
            f"the annotation {entry} matches nothing in the candidate's model{hint} "
            "correct its pattern (fnmatch syntax, for a full dotted name or the end of one) or "
            "remove it"
        )
        place = line_of_entry(candidate, entry) or ""
        yield Finding(
            verdict="fail", judge="align", check="annotation", message=message, source=place
        )


def line_of_entry(candidate: Trace, entry: str) -> str | None:
    """The "file:line" of an entry, such as "parameters: fc.weight", in the annotation file.

    "" without an entry; None if the annotations are not in a file.
    """
    facts = (each for rank in candidate.ranks for each in rank.events_of(Annotations))
    fact = next((each for each in facts if each.file), None)
    if fact is None:
        return None
    return place_of(Path(fact.file), entry, fact.model) if entry else ""


def _entries(candidate: Trace) -> list[str]:
    notes = (set(rank.note("unmatched_annotation")) for rank in candidate.ranks)
    return sorted(set.intersection(*notes))


def _spelled(candidate: Trace, entry: str, annotated: bool) -> list[str]:
    """The patterns that an entry may have been meant as.

    They have the entry's wildcards, and as many levels if a name has as many.  They are made of the
    names that an annotation matches if `annotated` is true, or else of those that none matches.
    """
    section, _, pattern = entry.partition(": ")
    kind, parts = _KINDS.get(section, "activation"), pattern.split(".")
    names: dict[str, bool] = {}
    for rank in candidate.ranks:
        for id, event in rank.tensors.items():
            if id.kind == kind:
                name = id.module if kind == "activation" else id.path
                own = event.layout_source not in ("default", PROPOSED)
                names[name] = names.get(name, False) or own
    found: dict[str, None] = {}
    for name in sorted(name for name, own in names.items() if own == annotated):
        levels = name.split(".")[-len(parts) :]
        pairs = zip(levels, parts[-len(levels) :], strict=True)
        found[".".join(own if fnmatchcase(level, own) else level for level, own in pairs)] = None
    return [*found]
