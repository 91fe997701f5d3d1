"""Updates a pack with newly learned invariants, and finds packs that contradict each other."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_trainsafe.judges.learn.inference.select import limits
from pytest_trainsafe.judges.learn.invariant import Invariant, Support
from pytest_trainsafe.judges.learn.packs.pack import Pack
from pytest_trainsafe.judges.learn.relation import Relation
from pytest_trainsafe.judges.learn.run import Source


@dataclass(frozen=True, slots=True)
class Update:
    """An updated pack, and how it differs from the old one.

    `new` has the invariants whose claims the old pack does not have.  `changed` has pairs of an old
    and a learned invariant with the same claim and different preconditions.  `unsupported` has the
    old invariants that were not learned again from the new runs.  They stay in the pack until a
    reviewer deletes them, as a program may be missing from the new runs by mistake.
    """

    pack: Pack
    new: tuple[Invariant, ...]
    changed: tuple[tuple[Invariant, Invariant], ...]
    unsupported: tuple[Invariant, ...]

    @property
    def empty(self) -> bool:
        """Whether no invariant is new, changed or unsupported.  The evidence may differ."""
        return not (self.new or self.changed or self.unsupported)


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Two invariants, with the names of their packs, that no example can both satisfy."""

    first: tuple[str, Invariant]
    second: tuple[str, Invariant]

    def __str__(self) -> str:
        (pack, one), (other_pack, other) = self.first, self.second
        return (
            f"{one.id} of the pack {pack} contradicts {other.id} of the pack {other_pack}: delete "
            "one of them, or use only one of the packs"
        )


def update(old: Pack, learned: Pack) -> Update:
    """Merge two packs: all learned invariants, and the old ones that were not learned again.

    The old evidence for a learned invariant stays if its precondition is the same and the program
    did not run again in that configuration: a few tests may have run, and not all.
    """
    before = {each.claim: each for each in old.invariants}
    again = {
        (support.program, setting)
        for each in learned.invariants
        for support in each.support
        for setting, _ in support.settings
    }
    after = {
        each.claim: _with_evidence_of(before.get(each.claim), each, again)
        for each in learned.invariants
    }
    new = [each for claim, each in after.items() if claim not in before]
    changed = [
        (before[claim], each)
        for claim, each in after.items()
        if claim in before and before[claim].precondition != each.precondition
    ]
    unsupported = [each for claim, each in before.items() if claim not in after]
    every = sorted([*after.values(), *unsupported], key=lambda each: each.claim.order)
    named = {each.program for invariant in every for each in invariant.support}
    programs = {name: old.programs[name] for name in named & old.programs.keys()}
    pack = Pack(old.name, tuple(every), {**programs, **learned.programs})
    return Update(pack, tuple(new), tuple(changed), tuple(unsupported))


def _with_evidence_of(
    old: Invariant | None, learned: Invariant, again: Collection[Source]
) -> Invariant:
    """The learned invariant, with the old evidence from runs that are not in `again`."""
    if old is None or old.precondition != learned.precondition:
        return learned
    seen = {each.program: dict(each.settings) for each in learned.support}
    kept = False
    for each in old.support:
        for setting, examples in each.settings:
            if (each.program, setting) not in again:
                seen.setdefault(each.program, {})[setting] = examples
                kept = True
    if not learned.example:
        learned = replace(learned, example=old.example)
    if not kept:
        return learned
    support = tuple(Support(name, tuple(sorted(seen[name].items()))) for name in sorted(seen))
    was, now = dict(old.within), dict(learned.within)
    # A field that one of the two does not list sets no limit to it.
    both = {field: {*was[field], *now[field]} for field in was.keys() & now.keys()}
    return replace(learned, support=support, within=limits(both))


def contradictions(
    packs: Sequence[Pack], relations: Mapping[str, Relation]
) -> tuple[Contradiction, ...]:
    """The pairs of invariants in the packs that no example can both satisfy.

    Two invariants of one pack do not contradict each other if one run supports both: they were
    judged on all of its examples, and none failed.
    `relations` has the relations that the invariants name, by name.
    """
    found = []
    groups: dict[tuple[str, frozenset[object]], list[tuple[str, Invariant]]] = {}
    for pack in packs:
        for invariant in pack.invariants:
            groups.setdefault(_about(invariant), []).append((pack.name, invariant))
    for group in groups.values():
        for at, first in enumerate(group):
            for second in group[at + 1 :]:
                if first[0] == second[0] and _sources(first[1]) & _sources(second[1]):
                    continue
                if first[1].claim != second[1].claim and _clash(first[1], second[1], relations):
                    found.append(Contradiction(first, second))
    return tuple(found)


def _about(invariant: Invariant) -> tuple[str, frozenset[object]]:
    """The relation of an invariant's claim, and the APIs, variable and argument that it names.

    Two invariants can contradict each other only if this function returns equal tuples for both.
    `contradictions` compares no other invariants.
    """
    claim = invariant.claim
    names = ("api", "inner", "variable", "attribute", "place")
    return claim.relation, frozenset(claim[name] for name in names)


def _clash(one: Invariant, other: Invariant, relations: Mapping[str, Relation]) -> bool:
    """Whether no example can satisfy both, and both can be judged on the same example.

    Two invariants are never judged on the same example if some field of their contexts has other
    values in one than in the other.
    """
    values = dict(other.within)
    if any(not {*seen} & {*values[name]} for name, seen in one.within if name in values):
        return False
    relation = relations[one.claim.relation]
    both = one.precondition.implies(other.precondition) or other.precondition.implies(
        one.precondition
    )
    return both and relation.contradicts(one.claim, other.claim)


def _sources(invariant: Invariant) -> set[Source]:
    """The programs that support an invariant, each in its configurations."""
    return {
        (support.program, setting)
        for support in invariant.support
        for setting, _ in support.settings
    }
