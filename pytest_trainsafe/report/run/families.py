"""Families: failing Points with one cause, and the axis values that they have in common.

One fault fails every Point that uses the faulty code.  Points belong to one family if the same
tensor is the first wrong one in the same way, or if localisation found the same code.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

from pytest_trainsafe.report.run.outcome import VERDICTS, Outcome

#: The maximum length of a condition in characters; longer conditions say little and are dropped.
_LONGEST = 200


@dataclass(frozen=True, slots=True)
class Family:
    """Failing Points with one cause.

    `condition` names axis values that all members have and no passing Point of the same tests has:
    "tp >= 2 and sp=True"; "" if there is no passing Point or no such condition.  `passing` is the
    number of passing Points of these tests.
    """

    members: tuple[Outcome, ...]
    condition: str
    passing: int

    @property
    def lead(self) -> Outcome:
        """The member that reports show for the family: the one with the fewest ranks.

        Members whose faulty code was located are preferred.
        """
        located = [outcome for outcome in self.members if outcome.first.located]
        return min(located or self.members, key=_size)


def families(found: Sequence[Outcome]) -> list[Family]:
    """The families of the failed tests, in the order in which they are reported.

    Families of wrong Points come before those of errors, and larger families before smaller ones.
    """
    failing = [outcome for outcome in found if outcome.failed and outcome.verdict in VERDICTS[:3]]
    made = []
    for members in _groups(failing):
        tests = {outcome.test for outcome in members}
        passing = [
            outcome
            for outcome in found
            if outcome.test in tests and outcome.verdict == "pass" and not outcome.failed
        ]
        made.append(Family(tuple(members), condition(members, passing), len(passing)))
    return sorted(made, key=lambda f: (VERDICTS.index(f.lead.verdict), -len(f.members)))


def _groups(failing: Sequence[Outcome]) -> list[list[Outcome]]:
    """The failing Outcomes in groups: two that share a key (see `_keys`) are in one group."""
    parent = list(range(len(failing)))

    def root(number: int) -> int:
        while parent[number] != number:
            parent[number] = parent[parent[number]]
            number = parent[number]
        return number

    seen: dict[Hashable, int] = {}
    for number, outcome in enumerate(failing):
        for key in _keys(outcome):
            if key in seen:
                parent[root(number)] = root(seen[key])
            else:
                seen[key] = number
    groups: dict[int, list[Outcome]] = {}
    for number, outcome in enumerate(failing):
        groups.setdefault(root(number), []).append(outcome)
    return list(groups.values())


def _keys(outcome: Outcome) -> Iterable[Hashable]:
    first = outcome.first
    whole = (outcome.program, outcome.verdict)
    what = first.tensor or first.where or first.message or outcome.reason
    yield (*whole, first.check, what, first.pattern_name)
    if first.located:
        # What follows a semicolon is another line, which may differ from module to module.
        yield (*whole, first.source, first.what.partition(";")[0])


def condition(failing: Sequence[Outcome], passing: Sequence[Outcome]) -> str:
    """A condition on axes, such as "tp >= 2", that all failing and no passing Points meet.

    For each axis, the condition names the value that all failing Points share, or a lower bound of
    their sizes.  Axes that are not needed to exclude the passing Points are left out.
    Returns "" if there is no such condition or no passing Point, if a Point has no axes, or if the
    text is too long.
    """
    if not passing or not all(outcome.axes for outcome in (*failing, *passing)):
        return ""
    axes = [dict(outcome.axes) for outcome in failing]
    others = [dict(outcome.axes) for outcome in passing]
    parts: list[_Part] = []
    for axis in axes[0]:
        values = [each.get(axis, "") for each in axes]
        if len(set(values)) == 1:
            parts.append(_Part(axis, values[0], False))
        elif all(map(_is_size, values)):
            parts.append(_Part(axis, str(min(map(int, values))), True))
    if not _excludes(parts, others):
        return ""
    for part in list(parts):
        left = [each for each in parts if each is not part]
        if left and _excludes(left, others):
            parts = left
    for number, part in enumerate(parts):
        wider = [*parts[:number], replace(part, at_least=True), *parts[number + 1 :]]
        if _is_size(part.value) and int(part.value) > 1 and _excludes(wider, others):
            parts = wider
    text = " and ".join(str(part) for part in parts)
    return text if len(text) <= _LONGEST else ""


@dataclass(frozen=True, slots=True)
class _Part:
    """One part of a condition: an axis has this value, or at least this value."""

    axis: str
    value: str
    at_least: bool

    def holds(self, axes: dict[str, str]) -> bool:
        value = axes.get(self.axis, "")
        if not self.at_least:
            return value == self.value
        return _is_size(value) and int(value) >= int(self.value)

    def __str__(self) -> str:
        return f"{self.axis} >= {self.value}" if self.at_least else f"{self.axis}={self.value}"


def _excludes(parts: Sequence[_Part], others: Sequence[dict[str, str]]) -> bool:
    """Whether no passing Point meets all `parts` of a condition.

    `others` has the axis values of each passing Point.
    """
    return not any(all(part.holds(each) for part in parts) for each in others)


def _is_size(value: str) -> bool:
    return value.isdecimal() and len(value) < 10


def _size(outcome: Outcome) -> tuple[int, str]:
    """Sort key: the product of a Point's integer axis values, then the node id.

    The product approximates the number of ranks.
    """
    size = 1
    for _, value in outcome.axes:
        size *= int(value) if _is_size(value) else 1
    return size, outcome.nodeid
