"""Which lines of the program ran, as far as its trace shows.

A trace has the lines that call collectives and modules, make tensors, and step the optimizer.  A
line that it does not have may have run all the same, unless it stands in a branch beside another
one whose lines it has.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass

from pytest_trainsafe.core.code_files import relative
from pytest_trainsafe.report.syntax import Function, parsed
from pytest_trainsafe.trace.facts import (
    Applied,
    Caller,
    Changed,
    CollectiveEvent,
    Made,
    Reduction,
    SetUp,
    Site,
)
from pytest_trainsafe.trace.reader import Trace

#: The events that have lines, and the fields that have them.
_FIELDS = (
    (Applied, ("forward", "backward")),
    (Caller, ("at",)),
    (Changed, ("at", "caller")),
    (CollectiveEvent, ("site", "user", "caller")),
    (Made, ("at",)),
    (Reduction, ("site", "caller")),
    (SetUp, ("at", "inside")),
    (Site, ("at", "user")),
)


def lines_that_ran(trace: Trace) -> frozenset[str]:
    """Each "file:line" of the program that the events of a trace name, as `relative` writes it."""
    found: set[str] = set()
    for rank in trace.ranks:
        for kind, fields in _FIELDS:
            for event in rank.events_of(kind):
                found.update(getattr(event, field) for field in fields)
        found.update(line for event in rank.events_of(Made) for line in event.of)
    return frozenset(relative(line) for line in found if line)


@dataclass(frozen=True, slots=True)
class Ran:
    """The lines that are known to have run; without any, nothing is known."""

    lines: frozenset[str] = frozenset()

    def any_of(self, path: str, lines: Iterable[int]) -> bool:
        """Whether one of these lines of a file is known to have run."""
        return any(relative(f"{path}:{line}") in self.lines for line in lines)

    def line(self, place: str) -> bool | None:
        """As `of`, for a "file:line", in the innermost function around it."""
        path, _, digits = place.rpartition(":")
        nodes = (node for node in ast.walk(parsed(path)) if isinstance(node, Function))
        around = [n for n in nodes if n.lineno <= int(digits) <= (n.end_lineno or 0)]
        inner = max(around, key=lambda node: node.lineno, default=None)
        return True if inner is None else self.of(path, inner, int(digits))

    def of(self, path: str, function: Function, line: int) -> bool | None:
        """Whether a line of a function may have run; None if it stands in a branch and may not.

        False if another branch of the same condition has a line that ran, and this one has none.
        """
        if not self.lines or self.any_of(path, [line]):
            return True
        known: bool | None = True
        for node in ast.walk(function):
            if not isinstance(node, ast.If):
                continue
            arms = [_span(node.body), _span(node.orelse)]
            own = next((arm for arm in arms if line in arm), None)
            if own is None or self.any_of(path, own):
                continue
            if any(self.any_of(path, arm) for arm in arms if arm is not own):
                return False
            known = None
        return known


#: Nothing is known.
UNKNOWN = Ran()


def _span(body: list[ast.stmt]) -> range:
    return range(body[0].lineno, (body[-1].end_lineno or 0) + 1) if body else range(0)
