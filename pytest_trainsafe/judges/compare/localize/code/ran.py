"""Which lines of the program ran, as far as its trace shows.

A trace has the lines that call collectives and modules, make tensors, and step the optimizer.  A
line that it does not have may have run all the same, unless it stands in a branch beside another
one whose lines it has, or in one that the axis values of the Point exclude.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_trainsafe.core.code_files import relative
from pytest_trainsafe.core.point import AxisValue
from pytest_trainsafe.judges.compare.localize.code.decided import decided
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


#: How many callers up a line is followed.
_LEVELS = 3

#: Statements that end a function or a turn of a loop.
JUMPS = (ast.Return, ast.Continue, ast.Break, ast.Raise)


@dataclass(frozen=True, slots=True)
class Ran:
    """The lines that are known to have run, in the candidate and in the reference of a failure.

    `axes` are the axis values of the candidate's Point.  Without any of these, nothing is known.
    """

    lines: frozenset[str] = frozenset()
    reference: frozenset[str] = frozenset()
    axes: Mapping[str, AxisValue] = field(default_factory=dict)

    def any_of(self, path: str, lines: Iterable[int]) -> bool:
        """Whether one of these lines of a file is known to have run."""
        return any(relative(f"{path}:{line}") in self.lines for line in lines)

    def where(self, path: str, line: int) -> str:
        """Which Runs are known to have run a line, in words; "" for none."""
        place = relative(f"{path}:{line}")
        runs = [("candidate", self.lines), ("reference", self.reference)]
        names = [name for name, lines in runs if place in lines]
        return f"runs in the {' and in the '.join(names)}" if names else ""

    def line(self, place: str, levels: int = _LEVELS) -> bool | None:
        """As `of`, for a "file:line", in the innermost function around it.

        False too if this is a private function of the file, and all its calls there did not run.
        """
        path, _, digits = place.rpartition(":")
        tree, line = parsed(path), int(digits)
        nodes = (node for node in ast.walk(tree) if isinstance(node, Function))
        around = [n for n in nodes if n.lineno <= line <= (n.end_lineno or 0)]
        inner = max(around, key=lambda node: node.lineno, default=None)
        if inner is None:
            return True
        own = self.of(path, inner, line)
        if own is False or not levels or self.any_of(path, _span(inner.body)):
            return own
        calls = _calls_of(tree, inner)
        if calls and all(self.line(f"{path}:{each}", levels - 1) is False for each in calls):
            return False
        return own

    def of(self, path: str, function: Function, line: int) -> bool | None:
        """Whether a line of a function may have run; None if it stands in a branch and may not.

        False if another branch of the same condition has a line that ran, and this one has none;
        or if neither has one and the Point excludes this branch, or ends the function before it.
        """
        if not (self.lines or self.axes) or self.any_of(path, [line]):
            return True
        known: bool | None = True
        bound = {*_bound(function)}
        for node in ast.walk(function):
            if not isinstance(node, ast.If):
                continue
            arms = [_span(node.body), _span(node.orelse)]
            own = next((arm for arm in arms if line in arm), None)
            if own is None or self.any_of(path, own):
                continue
            others = [arm for arm in arms if arm is not own]
            if any(self.any_of(path, arm) for arm in others):
                return False
            holds = decided(node.test, self.axes, bound)
            if holds is None:
                known = None
            elif holds is not (own is arms[0]):
                return False
        ended = (decided(each.test, self.axes, bound) for each in ends_before(function, line))
        return False if any(ended) and not self.any_of(path, [line]) else known


#: Nothing is known.
UNKNOWN = Ran()


def ends_before(function: Function, line: int) -> Iterator[ast.If]:
    """The conditions before a line of a function that end what the line is in, if they hold."""
    body: Sequence[ast.stmt] = function.body
    while body:
        at = next((n for n, each in enumerate(body) if line in _span([each])), None)
        if at is None:
            return
        for each in body[:at]:
            if isinstance(each, ast.If) and isinstance(each.body[-1], JUMPS):
                yield each
        within = [getattr(body[at], name, []) for name in ("body", "orelse", "finalbody")]
        within += [handler.body for handler in getattr(body[at], "handlers", [])]
        body = next((part for part in within if part and line in _span(part)), [])


def _calls_of(tree: ast.Module, function: Function) -> list[int]:
    """The lines that call a private function of a file; none if something else may call it."""
    if function not in tree.body or not function.name.startswith("_"):
        return []
    uses = [n for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id == function.name]
    called = {id(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call)}
    return [n.lineno for n in uses] if all(id(n) in called for n in uses) else []


def _bound(function: Function) -> Iterator[str]:
    """The names that the loops of a function give values."""
    for node in ast.walk(function):
        if isinstance(node, ast.For | ast.comprehension):
            names = (each for each in ast.walk(node.target) if isinstance(each, ast.Name))
            yield from (each.id for each in names)


def _span(body: Sequence[ast.stmt]) -> range:
    return range(body[0].lineno, (body[-1].end_lineno or 0) + 1) if body else range(0)
