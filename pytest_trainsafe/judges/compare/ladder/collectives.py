"""The collectives that ranks call in their steps: each line, with the axes that it acts over."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from pytest_trainsafe.core.code_files import relative
from pytest_trainsafe.judges.compare.explain.groups import over
from pytest_trainsafe.report.panels import Table
from pytest_trainsafe.report.sections import label
from pytest_trainsafe.trace.facts import CollectiveEvent, Reduction
from pytest_trainsafe.trace.reader import Trace

#: The most lines, and the most names of tensors of one line, that are listed.
MOST_LINES, MOST_NAMES = 40, 3

#: Where a program reduces gradients, unless a backward does.
REST = "outside of micro-batches"


class _Line(NamedTuple):
    at: str
    call: str
    axes: str
    during: str
    of_one: bool


def collectives(candidate: Trace) -> Table | None:
    """Each line that calls a collective in a step: the call, the axes, when, of what, how often.

    A line that reduces gradients for other files has the lines there that call it.

    None if no rank calls one.
    """
    calls: Counter[_Line] = Counter()
    names: dict[_Line, dict[str, None]] = {}
    callers: dict[tuple[str, str, str, bool], dict[str, None]] = {}
    for rank in candidate.ranks:
        own: Counter[_Line] = Counter()
        for event in rank.events_of(CollectiveEvent):
            if event.step is None or len(event.ranks) < 2:
                continue
            line = _Line(
                relative(event.user or event.site),
                str(event),
                over(candidate.point, event.ranks),
                _during(event),
                event.shape is not None and math.prod(event.shape) == 1,
            )
            own[line] += 1
            names.setdefault(line, {})
            if event.name:
                names[line][event.name] = None
        calls |= own  # the most of any rank
        for made in rank.events_of(Reduction):
            key = relative(made.site), made.call, " and ".join(made.axes), made.numel == 1
            if made.caller:
                callers.setdefault(key, {})[relative(made.caller)] = None
    if not calls:
        return None
    listed = [*names][:MOST_LINES]
    left = len(names) - len(listed)
    note = (
        "in all steps together; how often: on the rank that calls it most; of: what it is "
        "given, where that is known"
    )
    return Table(
        title="Collectives of the steps",
        columns=("line", "call", "over", "during", "of", "called at", "how often"),
        rows=tuple(
            (
                *map(label, line[:4]),
                label(_listed([*names[line]]) or ("one number" if line.of_one else "")),
                label(_listed([*callers.get((*line[:3], line.of_one), ())]))
                if line.during == REST
                else "",
                calls[line],
            )
            for line in listed
        ),
        note=f"{note}; {left} more lines are left out" if left else note,
    )


def _during(event: CollectiveEvent) -> str:
    if event.backward:
        return "backward"
    return "forward" if event.microbatch is not None else REST


def _listed(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
