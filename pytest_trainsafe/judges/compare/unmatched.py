"""Finds annotations whose pattern matches nothing in the candidate's model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pytest_trainsafe.annotations.lines import place_of
from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.core.usage import nearest
from pytest_trainsafe.trace.facts import Annotations
from pytest_trainsafe.trace.reader import Trace


def unmatched(candidate: Trace) -> Iterator[Finding]:
    """A failing finding for each annotation that matches nothing on any rank."""
    ranks = candidate.ranks
    patterns = set.intersection(*(set(rank.note("unmatched_annotation")) for rank in ranks))
    names = {name for id in candidate.ids() for name in (id.module, id.path)} if patterns else ()
    known = sorted({".".join(name.split(".")[-levels:]) for name in names for levels in (1, 2)})
    facts = (each for rank in ranks for each in rank.events_of(Annotations))
    fact = next((each for each in facts if each.file), None)
    for pattern in sorted(patterns):
        meant = nearest(pattern.partition(": ")[2], known)
        message = (
            f"the annotation {pattern} matches nothing in the candidate's model{meant or ';'} "
            "correct its pattern (fnmatch syntax, for a full dotted name or the end of one) or "
            "remove it"
        )
        place = place_of(Path(fact.file), pattern, fact.model) if fact is not None else ""
        yield Finding(
            verdict="fail", judge="align", check="annotation", message=message, source=place
        )
