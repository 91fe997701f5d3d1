"""Judges the examples of an invariant during a check, and reports those that break it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pytest_trainsafe.judges.learn.conditions import Feature, Features, Precondition
from pytest_trainsafe.judges.learn.events.events import Call, Change, Plain
from pytest_trainsafe.judges.learn.features import (
    call_features,
    change_features,
    context_features,
)
from pytest_trainsafe.judges.learn.invariant import Hypothesis, Invariant
from pytest_trainsafe.judges.learn.quote import quote

Record = Call | Change

#: How many sets of meta variables have their features cached.  Then the cache starts anew.
_MAX_KNOWN = 4096


class Contexts:
    """Computes the features of meta variables, such as the phase and the step, in one process.

    `first_step` is the first step of the process, on which the features depend.
    """

    def __init__(self, first_step: int | None = None) -> None:
        self._first_step = first_step
        #: Features, with the meta variables that they belong to, by the id of the latter: events
        #: with equal meta variables share one mapping.
        self._known: dict[int, tuple[Mapping[str, Plain], Features]] = {}
        self._last: tuple[Record | None, Features] = None, {}
        self._distinct: dict[tuple[tuple[str, Feature], ...], Features] = {}

    def see(self, meta: Mapping[str, Plain]) -> None:
        """Set the first step to the step of this event, if the first step is not known yet."""
        if self._first_step is not None:
            return
        step = meta.get("step")
        if isinstance(step, int):
            self._first_step = step
            self._known.clear()
            self._last = None, {}

    def features(self, meta: Mapping[str, Plain]) -> Features:
        """What preconditions may read of an event's context: its step and phase, for example."""
        known = self._known.get(id(meta))
        if known is None or known[0] is not meta:
            if len(self._known) > _MAX_KNOWN:
                self._known.clear()
            known = self._known[id(meta)] = meta, context_features(meta, self._first_step)
        return known[1]

    def of(self, record: Record) -> Features:
        """What preconditions may read of a call or a change; all checkers ask in turn."""
        if self._last[0] is not record:
            context = self.features(record.meta)
            if isinstance(record, Call):
                found = call_features(record, context)
            else:
                found = change_features(record, context)
            self._last = record, self.distinct(found)
        return self._last[1]

    def distinct(self, features: Features) -> Features:
        """The same object for equal features, so that a Watch judges them once."""
        key = tuple(features.items())
        known = self._distinct.get(key)
        if known is None:
            if len(self._distinct) > _MAX_KNOWN:
                self._distinct.clear()
            known = self._distinct[key] = features
        return known


@dataclass(slots=True, eq=False)
class Violation:
    """An example that breaks an invariant.

    `record` is the call or the change that breaks it, and `quoted` describes that in one line.
    `kept` describes another record, which satisfies the invariant; it is "" if there is none.
    `order` numbers the violations of a check as they were found.  `scenarios` says in which of
    several scenarios of the precondition the claim is broken.
    """

    invariant: Invariant
    record: Record
    quoted: str
    kept: str
    step: int | None
    rank: int
    detail: str = ""
    order: int = 0
    scenarios: str = ""


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
    claim: Hypothesis = field(init=False)
    _everywhere: bool = field(init=False)
    #: The scenarios of the precondition if it has several, and the examples of each that were kept
    #: and broken.
    parts: tuple[Precondition, ...] = field(init=False)
    _tally: list[list[int]] = field(init=False)
    #: Features that were judged, and whether the precondition holds and the context is known, by
    #: the id of the features.
    _judged: dict[int, tuple[Features, bool, bool]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.claim = self.invariant.claim
        when = self.invariant.precondition
        self._everywhere = when.always and not self.invariant.within
        several = len(when.any_of) > 1
        self.parts = tuple(Precondition((part,)) for part in when.any_of) if several else ()
        self._tally = [[0, 0] for _ in self.parts]

    def applies(self, features: Features) -> bool:
        """Whether to judge an example with these features."""
        known = self._judged.get(id(features))
        if known is None or known[0] is not features:
            if len(self._judged) > _MAX_KNOWN:
                self._judged.clear()
            holds = self.invariant.precondition.holds(features)
            known = features, holds, holds and self.invariant.in_context(features)
            self._judged[id(features)] = known
        _, holds, inside = known
        self.outside += holds and not inside
        return inside

    def example(
        self, features: Callable[[], Features], passed: bool, record: Record, detail: str = ""
    ) -> None:
        """Judge an example.  `features` is called only if the invariant does not always apply."""
        if not self._everywhere:
            found = features()
            if not self.applies(found):
                return
            self.count(found, int(passed), int(not passed))
        self.judge(passed, record, detail)

    def count(self, features: Features, kept: int, broken: int) -> None:
        """Count examples with these features in each scenario of the precondition, of several."""
        for part, tally in zip(self.parts, self._tally, strict=True):
            if part.holds(features):
                tally[0] += kept
                tally[1] += broken

    @property
    def scenarios(self) -> str:
        """In which scenarios of the precondition the claim is broken, and in which it still holds.

        "" if the precondition has one scenario only.
        """
        broken, held = [], []
        for part, (kept, failed) in zip(self.parts, self._tally, strict=True):
            if failed:
                broken.append(f"broken where {part} ({failed} of {failed + kept} examples)")
            elif kept:
                held.append(f"still holds where {part} ({kept} examples)")
        return "; ".join((*broken, *held))

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
            scenarios=self.scenarios,
        )
        self.report(violation)
