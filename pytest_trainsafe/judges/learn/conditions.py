"""Preconditions: when a rule applies, as conditions on the features of an example.

An example has one record (a call, a change) or several (the same variable on two ranks).  Its
features map the names of the records' fields to values.  If the records agree on a field, it has
their value, or `Mark.SAME` if the value can never matter.  If they differ, it has `Mark.DIFFERENT`.
A field that one of the records lacks is left out.  A context manager is active only where it is
recorded, so an `ACTIVE` field that a record lacks is False.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from pytest_trainsafe.judges.learn.events.events import ACTIVE, Plain


class Mark(enum.Enum):
    """What stands for the value of a field in an example with several records, such as two ranks'.

    SAME means that the records agree on the field and that their value is not kept.  DIFFERENT
    means that the records have different values.
    """

    SAME = "same"
    DIFFERENT = "different"


Feature = Plain | Mark
Features = Mapping[str, Feature]

Kind = Literal["constant", "consistent", "unequal", "exist"]
KINDS: tuple[Kind, ...] = ("constant", "consistent", "unequal", "exist")


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition on a field, such as "phase", of an example's records (calls or changes).

    The kind "constant" asks that the field has `value`, "consistent" that the records agree on it,
    "unequal" that they differ, and "exist" that all records have it.
    """

    kind: Kind
    field: str
    value: Plain = None

    def holds(self, features: Features) -> bool:
        """Whether an example with these values of its fields meets the condition."""
        if self.field not in features and not self.field.startswith(ACTIVE):
            return False
        found = features.get(self.field, False)
        if self.kind == "constant":
            return type(found) is type(self.value) and found == self.value
        if self.kind == "consistent":
            return found is not Mark.DIFFERENT
        return self.kind == "exist" or found is Mark.DIFFERENT

    @property
    def order(self) -> tuple[int, str, str, str]:
        """A key that sorts conditions in the same way on every machine."""
        return KINDS.index(self.kind), self.field, type(self.value).__name__, str(self.value)

    def __str__(self) -> str:
        if self.kind == "constant":
            return f"{self.field} is {self.value!r}"
        words = {"consistent": "is equal", "unequal": "differs", "exist": "exists"}
        return f"{self.field} {words[self.kind]}"


@dataclass(frozen=True, slots=True)
class Precondition:
    """Scenarios, of which at least one must hold.  A scenario holds if all its conditions do."""

    any_of: tuple[tuple[Condition, ...], ...] = ((),)

    def holds(self, features: Features) -> bool:
        """Whether an example with these values of fields meets all conditions of some scenario."""
        return any(all(each.holds(features) for each in part) for part in self.any_of)

    @property
    def always(self) -> bool:
        """Whether at least one scenario has no conditions, so that every example satisfies it."""
        return () in self.any_of

    @property
    def fields(self) -> frozenset[str]:
        """The fields that the conditions read."""
        return frozenset(each.field for part in self.any_of for each in part)

    def implies(self, other: Precondition) -> bool:
        """Whether each scenario of `self` has all conditions of some scenario of `other`."""
        return all(any(set(weaker) <= set(part) for weaker in other.any_of) for part in self.any_of)

    def __str__(self) -> str:
        if self.always:
            return "always"
        return ", or ".join(" and ".join(map(str, part)) for part in self.any_of)


ALWAYS = Precondition()


def conditions_of(features: Features, several: bool) -> Iterable[Condition]:
    """Every condition that an example meets whose fields have the values in `features`.

    `several` says whether the example has several records.  If not, no condition is "consistent",
    as there is nothing to agree with.
    """
    for field, found in features.items():
        yield Condition("exist", field)
        if found is Mark.DIFFERENT:
            yield Condition("unequal", field)
            continue
        if several:
            yield Condition("consistent", field)
        if not isinstance(found, Mark):
            yield Condition("constant", field, found)


def joined(first: Features, second: Features) -> dict[str, Feature]:
    """The features (values by field) of an example with two records, from those of each record."""
    found = {
        field: value if _same(value, second[field]) else Mark.DIFFERENT
        for field, value in first.items()
        if field in second
    }
    alone = first.keys() ^ second.keys()
    found.update((field, Mark.DIFFERENT) for field in alone if field.startswith(ACTIVE))
    return found


def _same(one: Feature, other: Feature) -> bool:
    return type(one) is type(other) and one == other
