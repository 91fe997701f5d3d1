"""Finds annotations whose pattern matches nothing in the candidate's model.

Such a pattern is often a misspelling.  What it was meant for then has no annotation: the report
names it beside the pattern, and does not say that it is missing, or that code is at fault.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from pytest_trainsafe.annotations.lines import place_of
from pytest_trainsafe.annotations.patterns import matches
from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.core.usage import close_to, either
from pytest_trainsafe.trace.facts import Annotations, Site
from pytest_trainsafe.trace.reader import Trace

#: The layout source of proposed layouts, which no annotation gives.
PROPOSED = "a proposal"

#: The check of the findings that are made here.
CHECK = "annotation"

#: The name of the evidence of these findings that is the entry, such as "parameters: fc.weight".
ENTRY = "entry"

#: Their place in dataflow: after every tensor, so that they are not taken for the first wrong one.
LAST = sys.maxsize

#: The kinds of tensors that the entries of a section name; those of the others name modules.
_KINDS = {"parameters": "param", "buffers": "buffer"}
_OUTPUTS = ("activation", "activation_grad", "decision")

#: The sections and the names in them: of parameters, modules or buffers.
Names = set[tuple[str, str]]


def unmatched(candidate: Trace) -> Iterator[Finding]:
    """A failing finding for each annotation that matches nothing on any rank."""
    for entry in _entries(candidate):
        place, hint = line_of_entry(candidate, entry), _hint(candidate, entry)
        yield Finding(
            verdict="fail",
            judge="align",
            check=CHECK,
            message=f"the annotation `{entry}` matches nothing in the model{hint}",
            source=watch_line(candidate) if place is None else place,
            evidence=((ENTRY, entry),),
            dtype=candidate.manifest.dtype,
            order=LAST,
        )


def apart(findings: Iterable[Finding]) -> tuple[list[Finding], list[Finding]]:
    """The failing findings on annotations that match nothing, and the other failing ones."""
    failing = [finding for finding in findings if finding.verdict == "fail"]
    dead = [finding for finding in failing if finding.check == CHECK]
    return dead, [finding for finding in failing if finding.check != CHECK]


def meant(candidate: Trace) -> Names:
    """What annotations that match nothing were probably meant for, and what has no other one."""
    found: Names = set()
    for entry in _entries(candidate):
        section, _, pattern = entry.partition(": ")
        known = _spelled(candidate, entry, annotated=False)
        for spelling in close_to(pattern, known):
            found |= {(section, name) for name in known[spelling]}
    return found


def may_follow(candidate: Trace, where: TensorId | None) -> bool:
    """Whether a wrong tensor may be wrong because the entry that was meant for it matches nothing.

    An entry says how ranks share a tensor, so on a single rank it changes nothing.
    """
    if where is None or candidate.manifest.world_size == 1:
        return False
    names = meant(candidate)
    if where.kind in _OUTPUTS:
        return ("modules", where.module) in names
    if where.kind == "buffer":
        return ("buffers", where.path) in names
    path = f"{where.path}."  # a state of the optimizer has its parameter's path and a name
    return any(s == "parameters" and path.startswith(f"{name}.") for s, name in names)


def line_of_entry(candidate: Trace, entry: str) -> str | None:
    """The "file:line" of an entry, such as "parameters: fc.weight", in the annotation file.

    "" without an entry; None if the annotations are not in a file.
    """
    facts = (each for rank in candidate.ranks for each in rank.events_of(Annotations))
    fact = next((each for each in facts if each.file), None)
    if fact is None:
        return None
    return place_of(Path(fact.file), entry, fact.model) if entry else ""


def watch_line(candidate: Trace) -> str:
    """The "file:line" that calls ctx.watch; "" if it is not known."""
    sites = (site for rank in candidate.ranks for site in rank.events_of(Site))
    return next((site.user or site.at for site in sites if site.what == "watch"), "")


def _entries(candidate: Trace) -> list[str]:
    notes = (set(rank.note("unmatched_annotation")) for rank in candidate.ranks)
    return sorted(set.intersection(*notes))


def _hint(candidate: Trace, entry: str) -> str:
    """What an entry was probably meant for, and what to do: a clause for a finding's message."""
    pattern = entry.partition(": ")[2]
    for annotated in (False, True):
        close = close_to(pattern, _spelled(candidate, entry, annotated))
        if close:
            todo = "correct or remove it" if annotated else "correct it"
            return f"; did you mean {either(close)}? If so, {todo}"
    return (
        "; correct its pattern (fnmatch syntax, for a full dotted name or the end of one) or "
        "remove it"
    )


def _spelled(candidate: Trace, entry: str, annotated: bool) -> dict[str, list[str]]:
    """The patterns that an entry may have been meant as, and the names that each is made of.

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
                # An entry for every name is no entry for this one.
                own = event.layout_source not in ("default", PROPOSED, f"{section}: *")
                names[name] = names.get(name, False) or own
    found: dict[str, list[str]] = {}
    for name in sorted(name for name, own in names.items() if own == annotated):
        levels = name.split(".")[-len(parts) :]
        pairs = zip(levels, parts[-len(levels) :], strict=True)
        spelling = ".".join(own if matches(own, level) else level for level, own in pairs)
        found.setdefault(spelling, []).append(name)
    return found
