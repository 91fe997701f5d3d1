"""Judges the examples of an invariant during a check, and reports those that break it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pytest_trainsafe.judge.learn.conditions import Features
from pytest_trainsafe.judge.learn.features import context_features
from pytest_trainsafe.judge.learn.invariant import Hypothesis, Invariant
from pytest_trainsafe.judge.learn.quote import quote
from pytest_trainsafe.trace.observed.events import Call, Change, Plain

Record = Call | Change

#: How many sets of meta variables have their features cached.  Then the cache starts anew.
_MAX_KNOWN = 4096


class Contexts:
    """Computes the features of meta variables, such as the phase and the step, in one process.

    `first_step` is the first step of the process, on which the features depend.
    """

    def __init__(self, first_step: int | None = None) -> None:
        self._first_step = first_step
        self._known: dict[tuple[tuple[str, Plain], ...], Features] = {}

    def see(self, meta: Mapping[str, Plain]) -> None:
        """Set the first step to the step of this event, if the first step is not known yet."""
        step = meta.get("step")
        if self._first_step is None and isinstance(step, int):
            self._first_step = step
            self._known.clear()

    def features(self, meta: Mapping[str, Plain]) -> Features:
        """What preconditions may read of an event's context: its step and phase, for example."""
        key = tuple(meta.items())
        known = self._known.get(key)
        if known is None:
            if len(self._known) > _MAX_KNOWN:
                self._known.clear()
            known = self._known[key] = context_features(meta, self._first_step)
        return known


@dataclass(slots=True, eq=False)
class Violation:
    """An example that breaks an invariant.

    `record` is the call or the change that breaks it, and `quoted` describes that in one line.
    `kept` describes another record, which satisfies the invariant; it is "" if there is none.
    `order` numbers the violations of a check as they were found.
    """

    invariant: Invariant
    record: Record
    quoted: str
    kept: str
    step: int | None
    rank: int
    detail: str = ""
    order: int = 0


@dataclass(slots=True, eq=False)
class Watch:
    """Judges the examples of one invariant.

    `triggered` counts the judged examples, and `broken` those of them that failed.  An example in a
    context in which the invariant was not learned is counted in `outside` and not judged.  `kept`
    is the last record that satisfied the invariant.
    """

    invariant: Invariant
    report: Callable[[Violation], None]
    rank: int = 0
    triggered: int = 0
    broken: int = 0
    outside: int = 0
    kept: Record | None = None

    @property
    def claim(self) -> Hypothesis:
        """What the invariant claims."""
        return self.invariant.claim

    def applies(self, features: Features) -> bool:
        """Whether to judge an example with these features."""
        if not self.invariant.precondition.holds(features):
            return False
        if not self.invariant.in_context(features):
            self.outside += 1
            return False
        return True

    def example(
        self, features: Callable[[], Features], passed: bool, record: Record, detail: str = ""
    ) -> None:
        """Judge an example.  `features` is called only if the invariant does not always apply."""
        always = self.invariant.precondition.always and not self.invariant.within
        if always or self.applies(features()):
            self.judge(passed, record, detail)

    def judge(self, passed: bool, record: Record, detail: str = "") -> None:
        """Count an example to which the invariant applies.  Report it if it failed."""
        self.triggered += 1
        if passed:
            self.kept = record
            return
        self.broken += 1
        step = record.meta.get("step")
        violation = Violation(
            self.invariant,
            record,
            quote(record),
            "" if self.kept is None else quote(self.kept),
            step if isinstance(step, int) else None,
            self.rank,
            detail,
        )
        self.report(violation)
