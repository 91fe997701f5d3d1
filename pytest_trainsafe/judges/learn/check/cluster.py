"""Groups violations by their probable cause.

The first violation begins a cause.  Further violations in the same step belong to it, since data
flows through a step in order.  A violation in another step belongs to it if it touches an API, an
object or a kind of variable that the violations of the first step touch; else it begins a cause.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_trainsafe.judges.learn.events.events import Call
from pytest_trainsafe.judges.learn.events.slips import SLIP, TRAINING, slip_in
from pytest_trainsafe.judges.learn.inference.select import confidence
from pytest_trainsafe.judges.learn.names import family, variable
from pytest_trainsafe.judges.learn.relation import Relation
from pytest_trainsafe.judges.learn.watch import Record, Violation

#: The relations on what a program calls, and what it forgets.
_CALLED = frozenset({"sequence", "renewed", "slip"})


@dataclass(frozen=True, slots=True)
class Cluster:
    """The violations of one cause: the one that shows the cause best, and the others."""

    lead: Violation
    others: tuple[Violation, ...]

    @property
    def rules(self) -> int:
        """The number of broken claims."""
        return len({each.invariant.claim for each in (self.lead, *self.others)})


def clusters(
    violations: Sequence[Violation], relations: Mapping[str, Relation]
) -> tuple[Cluster, ...]:
    """The violations grouped by cause, in the order in which the causes are first seen."""
    groups: list[list[Violation]] = []
    touched: list[set[str]] = []
    for violation in violations:
        own = touches(violation)
        for group, names in zip(groups, touched, strict=True):
            if group[0].step == violation.step or names & own:
                group.append(violation)
                # Only the names of the first step identify the cause, as later violations touch
                # more and more names.
                if group[0].step == violation.step:
                    names |= own
                break
        else:
            groups.append([violation])
            touched.append(own)
    return tuple(_cluster(group, relations) for group in groups)


def touches(violation: Violation) -> set[str]:
    """The names of APIs, objects and kinds of variables that a violation touches."""
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
        if record.attribute == SLIP:
            found = {slip_in(record.after.plain)}  # one slip is no sign of another
        call = record.by
    while call is not None:
        found.add(family(call.api)[0])
        call = call.parent
    return found


def _cluster(group: Sequence[Violation], relations: Mapping[str, Relation]) -> Cluster:
    """The Cluster of a group.  Its lead is the best violation of the first step, by `_rank`."""
    first = [each for each in group if each.step == group[0].step]
    called = any(each.invariant.claim.relation in _CALLED for each in first)

    lead = min(first, key=lambda each: _rank(each, relations, called))
    return Cluster(lead, tuple(each for each in group if each is not lead))


def _rank(
    violation: Violation, relations: Mapping[str, Relation], called: bool
) -> tuple[bool, bool, float, bool, int]:
    """A sort key for the violations of one step, best first.

    Violations of rules that name an object of the program come first: they say what is trained
    otherwise.  If `called`, which says that a rule on what a program calls (`_CALLED`) is broken
    too, values that differ between ranks are its consequence and come last, however often they were
    equal.  Then comes the violation of the invariant with the highest confidence, rounded to
    tenths.  Among violations with equal confidence, changes of an optimizer's objects come last,
    and slips, which may be the consequence of what another rule says more exactly.
    Among the rest, the violation that was found first comes first.
    """
    invariant, record = violation.invariant, violation.record
    sure = confidence(invariant, relations[invariant.claim.relation])
    copy = not isinstance(record, Call) and record.object.startswith(("optimizer", TRAINING))
    unnamed = not relations[invariant.claim.relation].named
    values = invariant.claim["form"] != "calls" and relations[invariant.claim.relation].several
    return unnamed, called and values, -round(sure * 10) / 10, copy, violation.order
