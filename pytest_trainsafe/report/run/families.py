"""Families: failing Points with one cause, and the axis values that they have in common.

One fault fails every Point that uses the faulty code.  Points belong to one family if the same
tensor is the first wrong one in the same way, or if localisation found the same code.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pytest_trainsafe.report.run.outcome import VERDICTS, Outcome
from pytest_trainsafe.sweep.point_summary import ANNOTATED

#: The maximum length of a condition in characters; longer conditions say little and are dropped.
_LONGEST = 200


#: The numbers of ranks and of a collective, which differ between Points that fail in one way.
_RANKS = re.compile(r"\branks? (?:\d+(?:(?:, | and )\d+)*(?: of \d+)?|\[[\d, ]*\])")
_CALL = re.compile(r"(collective |#)\d+")
#: How a message begins that ranks made different calls, whose order and sizes differ too.
_MISMATCH = "collective mismatch: "


@dataclass(frozen=True, slots=True)
class Family:
    """Failing Points with one cause.

    `condition` names axis values that all members have and no passing Point of the same tests has:
    "tp >= 2 and sp=True"; "" if there is no passing Point, no such condition, or more than one, or
    if a member wrote annotations, which later Points read.
    `common` is then a sentence on what the members have in common, or "".  `passing` is the number
    of passing Points of these tests.
    """

    members: tuple[Outcome, ...]
    condition: str
    passing: int
    common: str = ""

    @property
    def lead(self) -> Outcome:
        """The member that reports show for the family: the one with the fewest ranks.

        Members whose faulty code was located are preferred.
        """
        located = [outcome for outcome in self.members if outcome.first.located]
        return min(located or self.members, key=_size)

    @property
    def points(self) -> str:
        """The members' Points, with the axis values that all of them share first.

        For example `tp=2 sp=True with dp=1, with dp=2`.
        """
        axes = [dict(outcome.axes) for outcome in self.members]
        same = {
            axis: value
            for axis, value in axes[0].items()
            if all(each.get(axis) == value for each in axes)
        }
        rest = [_named(each, same) for each in axes]
        if len(self.members) < 3 or not same or not all(rest):
            named = (outcome.point or outcome.nodeid for outcome in self.members)
            return ", ".join(dict.fromkeys(named))
        return f"{_named(same, {})} with {'; '.join(dict.fromkeys(rest))}"


def _named(axes: Mapping[str, str], without: Collection[str]) -> str:
    return " ".join(f"{axis}={value}" for axis, value in axes.items() if axis not in without)


def counts(found: Sequence[Outcome]) -> str:
    """The failed tests by how they end: `3 failed, 2 inconclusive, 1 error`; "" if none failed."""
    words = {"fail": "failed", "inconclusive": "inconclusive", "error": "error"}
    number = Counter(outcome.verdict for outcome in found if outcome.failed)
    return ", ".join(
        f"{number[verdict]} {word}{'s' * (verdict == 'error' and number[verdict] != 1)}"
        for verdict, word in words.items()
        if number[verdict]
    )


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
        # Later Points pass or fail with the annotations that a member wrote.
        if any(outcome.first.check == ANNOTATED for outcome in members):
            made.append(Family(tuple(members), "", len(passing)))
            continue
        only = condition(members, passing)
        common = "" if only else in_common(members, passing)
        made.append(Family(tuple(members), only, len(passing), common))
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
    if first.check == "exception":
        what = _CALL.sub(r"\1N", _RANKS.sub("ranks", what))
        if what.startswith(_MISMATCH) and first.source:
            what = f"{_MISMATCH}{first.source}"
    yield (*whole, first.check, what, first.pattern_name)
    if first.located:
        # What follows a semicolon is another line, which may differ from module to module.
        yield (*whole, first.source, first.what.partition(";")[0])


def condition(failing: Sequence[Outcome], passing: Sequence[Outcome]) -> str:
    """A condition on axes, such as "tp >= 2", that all failing and no passing Points meet.

    For each axis, the condition names the value that all failing Points share, or a lower bound of
    their sizes.  Axes that are not needed to exclude the passing Points are left out.
    Returns "" if there is no such condition or if another one fits the Points as well: in a sweep
    that runs few Points, failing Points also share values that have nothing to do with the failure.
    Also returns "" if no Point passes, if a Point has no axes, or if the text is too long.
    """
    parts, others = _shared(failing, passing)
    # A part is in every condition that fits if the other parts do not exclude the passing Points.
    needed = [part for part in parts if not _excludes([p for p in parts if p is not part], others)]
    if not needed or not others or not _excludes(needed, others):
        return ""
    return _text(needed)


def in_common(failing: Sequence[Outcome], passing: Sequence[Outcome]) -> str:
    """The axis values that all failing Points share, and how many passing Points have them too.

    For example `every failing point has tp >= 2 and tail=2; no passing point has all of these`.
    Axes with one value in all Points are left out.  Returns "" if fewer than two Points fail, if no
    Point passes, if nothing is shared, or if the text is too long.
    """
    parts, others = _shared(failing, passing)
    parts = [part for part in parts if not all(part.holds(each) for each in others)]
    text = _text(parts)
    if len(failing) < 2 or not others or not text:
        return ""
    count = sum(all(part.holds(each) for part in parts) for each in others)
    also = f"so do {count} passing ones" if count != 1 else "so does 1 passing one"
    none = "no passing point has it" if len(parts) == 1 else "no passing point has all of these"
    return f"every failing point has {text}; {also if count else none}"


def _shared(
    failing: Sequence[Outcome], passing: Sequence[Outcome]
) -> tuple[list[_Part], list[dict[str, str]]]:
    """The conditions on single axes that all failing Points meet, and the passing Points' axes.

    Both are empty if a Point has no axes.
    """
    if not all(outcome.axes for outcome in (*failing, *passing)):
        return [], []
    axes = [dict(outcome.axes) for outcome in failing]
    others = [dict(outcome.axes) for outcome in passing]
    parts: list[_Part] = []
    for axis in axes[0]:
        values = [each.get(axis, "") for each in axes]
        tried = {*values, *(each.get(axis, "") for each in others)}
        sizes = all(map(_is_size, tried))
        if len(set(values)) == 1:
            # The largest size that was tried, and not the smallest: "at least" says the same.
            largest = sizes and int(values[0]) == max(map(int, tried)) and int(values[0]) > 1
            parts.append(_Part(axis, values[0], bool(largest)))
        elif sizes:
            parts.append(_Part(axis, str(min(map(int, values))), True))
    return parts, others


def _text(parts: Sequence[_Part]) -> str:
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
