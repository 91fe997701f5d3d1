"""Violations by cause: what is broken first, and what follows from it.

Two violations of a step have one cause if their records are nested, or touch the same API, object
or kind of variable.  What is broken later in the step in which a cause is found first follows
from it, since data flows through a step in order; and so does what is broken in a later step and
touches what the cause touches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_trainsafe.judge.learn.inference.select import confidence
from pytest_trainsafe.judge.learn.names import family, variable
from pytest_trainsafe.judge.learn.relation import Relation
from pytest_trainsafe.judge.learn.watch import Record, Violation
from pytest_trainsafe.trace.observed.events import Call


@dataclass(frozen=True, slots=True)
class Cluster:
    """One cause: the violation that names it best, and the others that follow from it."""

    lead: Violation
    others: tuple[Violation, ...]

    @property
    def rules(self) -> int:
        """How many invariants are broken."""
        return len({each.invariant.claim for each in (self.lead, *self.others)})


def clusters(
    violations: Sequence[Violation], relations: Mapping[str, Relation]
) -> tuple[Cluster, ...]:
    """The violations by cause, the first cause first."""
    groups: list[list[Violation]] = []
    touched: list[set[str]] = []
    for violation in violations:
        own = touches(violation)
        for group, names in zip(groups, touched, strict=True):
            if group[0].step == violation.step or names & own:
                group.append(violation)
                # Only what the first step touches is a part of the cause: what follows touches
                # ever more.
                if group[0].step == violation.step:
                    names |= own
                break
        else:
            groups.append([violation])
            touched.append(own)
    return tuple(_cluster(group, relations) for group in groups)


def touches(violation: Violation) -> set[str]:
    """The APIs, objects and variables that a violation is about."""
    claim = violation.invariant.claim
    found = {claim.text(name) for name in ("api", "inner", "variable")}
    found |= _names(violation.record)
    return found - {""}


def _names(record: Record) -> set[str]:
    found = set()
    call: Call | None
    if isinstance(record, Call):
        call = record
    else:
        found = {record.object, variable(record.object, record.type)}
        call = record.by
    while call is not None:
        found.add(family(call.api)[0])
        call = call.parent
    return found


def _cluster(group: Sequence[Violation], relations: Mapping[str, Relation]) -> Cluster:
    """The group with the best of its first step in the lead."""
    first = [each for each in group if each.step == group[0].step]
    lead = min(first, key=lambda each: _rank(each, relations))
    return Cluster(lead, tuple(each for each in group if each is not lead))


def _rank(violation: Violation, relations: Mapping[str, Relation]) -> tuple[float, bool, int]:
    """By evidence, in coarse classes, then what has a name in the model, then by time."""
    invariant, record = violation.invariant, violation.record
    sure = confidence(invariant, relations[invariant.claim.relation])
    copy = not isinstance(record, Call) and record.object.startswith("optimizer")
    return -round(sure * 10) / 10, copy, violation.order
