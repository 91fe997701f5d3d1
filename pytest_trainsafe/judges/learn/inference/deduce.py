"""Deduces when a hypothesis holds, from the features of its passing and failing examples.

A precondition is safe if it is false for every failing example.  The conditions that all passing
examples meet are tried first.  If they are not safe together, the hypothesis holds in several
scenarios: further conditions split the passing examples, beginning with those that cover the most
examples, and the scenarios are joined by "or".  Conditions that all failing examples meet as well
are left out.

A group of examples is a bitmask: an integer with one bit for each distinct combination of features.
The cost therefore depends on the number of combinations, not on the number of examples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pytest_trainsafe.judges.learn.conditions import (
    ALWAYS,
    Condition,
    Features,
    Precondition,
    conditions_of,
)
from pytest_trainsafe.judges.learn.events.events import ACTIVE
from pytest_trainsafe.judges.learn.evidence import Counts

#: The most scenarios of a precondition, and the most splits on the way to one of them.
_MAX_SCENARIOS, _MAX_SPLITS = 6, 3
#: The least share of the passing examples that the scenarios must cover.
_LEAST_COVERED = 0.5
#: The least examples that a scenario must cover: fewer are a coincidence.
_LEAST_EXAMPLES = 3


@dataclass(frozen=True, slots=True)
class Deduced:
    """A precondition, and the number of passing examples that meet it."""

    precondition: Precondition
    covered: int


def deduce(counts: Counts, several: bool, forbidden: Callable[[str], bool]) -> Deduced | None:
    """The precondition of a hypothesis; None if no safe one covers half of the passing examples.

    A passing example is not covered if a failing one has the same features.  `several` says whether
    examples have several records.  `forbidden` says whether a precondition must not read a field.
    """
    counts = _with_inactive(counts)
    passing = [(features, passed) for features, passed, failed in counts if passed and not failed]
    failing = [features for features, _, failed in counts if failed]
    total = sum(passed for _, passed, _ in counts)
    if not failing:
        return Deduced(ALWAYS, total) if total else None
    if not passing:
        return None
    search = _Search(passing, failing, several, forbidden)
    found = search.scenarios()
    covered = sum(search.weight(each.passing) for each in _disjoint(found))
    if not found or covered < _LEAST_COVERED * total:
        return None
    parts = sorted(
        (tuple(sorted(each.conditions, key=lambda c: c.order)) for each in found),
        key=lambda part: [condition.order for condition in part],
    )
    return Deduced(Precondition(tuple(parts)), covered)


def _with_inactive(counts: Counts) -> Counts:
    """The same with False for each context manager that is active in other examples only."""
    names = {field for features, _, _ in counts for field in features if field.startswith(ACTIVE)}
    inactive = dict.fromkeys(sorted(names), False)
    if not inactive:
        return counts
    return [({**inactive, **features}, passed, failed) for features, passed, failed in counts]


@dataclass(frozen=True, slots=True)
class _Scenario:
    """Conditions that no failing example meets together, and the passing examples that do.

    `passing` is a bitmask with one bit for each distinct combination of features of passing
    examples; the bit is set if examples with these features meet all conditions.
    """

    conditions: frozenset[Condition]
    passing: int


class _Search:
    def __init__(
        self,
        passing: Sequence[tuple[Features, int]],
        failing: Sequence[Features],
        several: bool,
        forbidden: Callable[[str], bool],
    ) -> None:
        self._weights = [weight for _, weight in passing]
        self._every = (1 << len(passing)) - 1
        self._fails = (1 << len(failing)) - 1
        holds: dict[Condition, int] = {}
        for at, (features, _) in enumerate(passing):
            for condition in conditions_of(features, several):
                if not forbidden(condition.field):
                    holds[condition] = holds.get(condition, 0) | 1 << at
        self._holds = {each: holds[each] for each in sorted(holds, key=lambda c: c.order)}
        self._broken = {
            condition: sum(1 << at for at, each in enumerate(failing) if not condition.holds(each))
            for condition in self._holds
        }
        # A condition that all failing examples meet does not exclude any of them.
        self._telling = [each for each in self._holds if self._broken[each]]

    def weight(self, examples: int) -> int:
        """The number of examples that the bitmask `examples` selects.

        A set bit selects all passing examples with one distinct combination of features.
        """
        return sum(each for at, each in enumerate(self._weights) if examples >> at & 1)

    def scenarios(self) -> list[_Scenario]:
        """Returns scenarios: sets of conditions that no failing example meets together.

        They are chosen one by one, so that each new scenario covers many of the passing examples
        that no earlier scenario covers.
        """
        found: list[_Scenario] = []
        left = self._every
        while left and len(found) < _MAX_SCENARIOS:
            best = self._scenario(left, left, 0)
            if best is None:
                break
            found.append(best)
            left &= ~best.passing
        return found

    def _scenario(self, group: int, left: int, splits: int) -> _Scenario | None:
        """A scenario that covers much of `group`; None if none is found.

        A scenario is a set of conditions that no failing example meets together.  `group` is a part
        of `left`, the passing examples that no scenario covers yet.  `splits` is the number of
        conditions that were chosen to arrive at this group.
        """
        if self.weight(group) < _LEAST_EXAMPLES:
            return None
        common = [each for each in self._telling if self._holds[each] & group == group]
        broken = 0
        for condition in common:
            broken |= self._broken[condition]
        if broken == self._fails:
            return self._made(common)
        if splits == _MAX_SPLITS:
            return None
        # The parts of the group that further conditions select, and the examples in each.
        candidates: dict[int, int] = {}
        for condition in self._telling:
            part = self._holds[condition] & group
            if part and part != group and self._broken[condition] & ~broken:
                candidates.setdefault(part, self.weight(part))
        best: _Scenario | None = None
        for part in sorted(candidates, key=lambda each: (-candidates[each], each))[:8]:
            if best is not None and candidates[part] <= self.weight(best.passing & left):
                break
            found = self._scenario(part, left, splits + 1)
            if found is not None and (
                best is None or self.weight(found.passing & left) > self.weight(best.passing & left)
            ):
                best = found
        return best

    def _enough(self, common: Sequence[Condition]) -> Sequence[Condition]:
        """Returns a part of `common` such that no failing example meets all conditions of the part.

        No failing example meets all conditions in `common`.  The parts are tried in this order: the
        conditions on the context, such as the phase; all conditions except those of the kind
        "exist"; all conditions.  Conditions on arguments are avoided, because they often describe
        the same context by values that only one program has.
        """
        values = [each for each in common if each.kind != "exist"]
        context = [e for e in values if "." not in e.field or e.field.startswith(ACTIVE)]
        for conditions in (context, values):
            broken = 0
            for condition in conditions:
                broken |= self._broken[condition]
            if broken == self._fails:
                return conditions
        return common

    def _made(self, common: Sequence[Condition]) -> _Scenario:
        """A scenario of these conditions; leaves out each condition that another one implies."""
        constant = {each.field for each in common if each.kind == "constant"}
        different = {each.field for each in common if each.kind == "unequal"}
        consistent = {each.field for each in common if each.kind == "consistent"} | constant
        kept = []
        for each in self._enough(common):
            implied = (each.kind == "consistent" and each.field in constant) or (
                each.kind == "exist" and each.field in consistent | different
            )
            if not implied:
                kept.append(each)
        passing = self._every
        for condition in kept:
            passing &= self._holds[condition]
        return _Scenario(frozenset(kept), passing)


def _disjoint(scenarios: Sequence[_Scenario]) -> list[_Scenario]:
    """The scenarios, each with only the passing examples that no earlier scenario covers."""
    found, seen = [], 0
    for each in scenarios:
        found.append(_Scenario(each.conditions, each.passing & ~seen))
        seen |= each.passing
    return found
