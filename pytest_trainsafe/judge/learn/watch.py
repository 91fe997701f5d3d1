"""A deployed invariant while it is checked: it judges examples and reports broken ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pytest_trainsafe.judge.learn.conditions import Features, Mark
from pytest_trainsafe.judge.learn.features import context_features
from pytest_trainsafe.judge.learn.invariant import Hypothesis, Invariant
from pytest_trainsafe.judge.learn.quote import quote
from pytest_trainsafe.trace.observed.events import Call, Change, Plain

Record = Call | Change

#: Sets of meta variables whose features are kept: those of many steps at once are not needed.
_MAX_KNOWN = 4096


class Contexts:
    """The features of meta variables in one process, which depend on its first step."""

    def __init__(self, first_step: int | None = None) -> None:
        self._first_step = first_step
        self._known: dict[tuple[tuple[str, Plain], ...], Features] = {}

    def see(self, meta: Mapping[str, Plain]) -> None:
        """Note the first step, from the meta variables of an event."""
        step = meta.get("step")
        if self._first_step is None and isinstance(step, int):
            self._first_step = step
            self._known.clear()

    def features(self, meta: Mapping[str, Plain]) -> Features:
        """The features of the meta variables of an event."""
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

    `record` breaks it; `quoted` describes it, and `kept` an earlier record that keeps it, "" if
    there was none.  `order` numbers the violations of a check as they were found.
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

    An example in another context than those that the invariant was learned in is counted in
    `outside` and not judged.
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
        """Whether the invariant is to be judged on an example with these features."""
        if not self.invariant.precondition.holds(features):
            return False
        for name, values in self.invariant.within:
            # Of several records, those that differ in a field are judged by the precondition.
            value = features.get(name, Mark.SAME)
            if not isinstance(value, Mark) and value not in values:
                self.outside += 1
                return False
        return True

    def example(
        self, features: Callable[[], Features], passed: bool, record: Record, detail: str = ""
    ) -> None:
        """Judge an example.  `features` is called only where it matters."""
        always = self.invariant.precondition.always and not self.invariant.within
        if always or self.applies(features()):
            self.judge(passed, record, detail)

    def judge(self, passed: bool, record: Record, detail: str = "") -> None:
        """Count an example to which the invariant applies, and report it if it failed."""
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
