"""The parts of a pack, in the order in which a person reviews them.

The rules that a reviewer should read come first: who trains what, and what holds for training in
general.  What says little, such as the habits of one program, is below, with its number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_trainsafe.judges.learn.invariant import Invariant
from pytest_trainsafe.judges.learn.relation import CHOICE, Relation

#: The most rules that a reviewer is asked to read.
LISTED = 60
#: The relation whose rules every program of torch should keep, and the one that says who trains
#: what by name.
_KNOWN, _WHO = "slip", "setup"


@dataclass(frozen=True, slots=True)
class Part:
    """Some invariants of a pack, and the lines above them.

    If it is `folded`, each of them takes one line.
    """

    heading: tuple[str, ...]
    invariants: Sequence[Invariant]
    folded: bool = False


def parts_of(invariants: Sequence[Invariant], relations: Mapping[str, Relation]) -> Iterator[Part]:
    """The parts that are not empty, which together have each invariant once."""
    named: list[Invariant] = []
    known: list[Invariant] = []
    telling: list[Invariant] = []
    habits: list[Invariant] = []
    for each in sorted(invariants, key=lambda each: _telling(each, relations)):
        relation = relations[each.claim.relation]
        if each.claim.relation == _WHO:
            named.append(each)
        elif each.claim.relation == _KNOWN:
            known.append(each)
        else:
            (telling if relation.prior(each.claim) >= CHOICE else habits).append(each)
    setup, more = named[:LISTED], named[LISTED:]
    read, rest = telling[: LISTED - len(setup)], telling[LISTED - len(setup) :]
    yield from _part(setup, "Who trains what: {}. Does each line say what you want?")
    yield from _part(read, "What would be noticed if it broke: {}. Is each a rule of training?")
    yield from _part(
        known,
        "Slips that did not happen: {}. Most programs keep these; is one of the slips meant?",
        folded=True,
    )
    yield from _part([*more, *rest], "Further rules, which say less: {}.", folded=True)
    yield from _part(
        habits,
        "Habits, checked only on the programs that they were learned from: {}.",
        folded=True,
    )


def _part(invariants: Sequence[Invariant], heading: str, folded: bool = False) -> Iterator[Part]:
    if not invariants:
        return
    count = len(invariants)
    lines = [heading.format(f"{count} rule{'s' * (count != 1)}")]
    of = Counter(each.claim.relation for each in invariants)
    if folded and len(of) > 1:
        lines.append("They are: " + ", ".join(f"{of[name]} {name}" for name in sorted(of)) + ".")
    yield Part(tuple(lines), sorted(invariants, key=lambda each: each.claim.order), folded)


def _telling(invariant: Invariant, relations: Mapping[str, Relation]) -> tuple[object, ...]:
    """A key that sorts the rules that say most first: those that are credible and often kept."""
    claim = invariant.claim
    credible = relations[claim.relation].prior(claim)
    return -credible, -invariant.programs, -invariant.examples, claim.order
