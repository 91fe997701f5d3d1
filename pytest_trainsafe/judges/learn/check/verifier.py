"""Checks the events of one process one by one: as they happen, or from a recorded table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pytest_trainsafe.errors import TrainsafeError
from pytest_trainsafe.judges.learn.check.checker import Checker, name_of, variable_of
from pytest_trainsafe.judges.learn.events.events import Call, Change, Listener
from pytest_trainsafe.judges.learn.inference.select import confidence
from pytest_trainsafe.judges.learn.invariant import Invariant
from pytest_trainsafe.judges.learn.packs.pack import Pack
from pytest_trainsafe.judges.learn.relation import Relation
from pytest_trainsafe.judges.learn.watch import Contexts, Violation, Watch
from pytest_trainsafe.judges.learn.wording import in_words

#: The least confidence of an invariant that is checked.  A rule with the prior 0 reaches it with
#: three programs, a rule with the prior 2 with one program.  Two examples of the checked program
#: itself are enough for any rule.
CONFIDENCE = 0.75

#: The most violations of one invariant that are kept.  Further ones are only counted.
MAX_KEPT = 20


class InvariantViolation(TrainsafeError, AssertionError):
    """Raised in the step in which training breaks an invariant."""

    def __init__(self, violation: Violation, text: str) -> None:
        super().__init__(text)
        self.violation = violation


class Verifier:
    """A Listener that checks the invariants of packs on the events that it receives.

    With `on_violation="raise"`, the event that shows the first violation raises InvariantViolation;
    with "collect", violations are collected in `violations`.  Relations that compare ranks are not
    checked here: `ranks.RanksVerifier` does while the ranks train, and `offline.check` afterwards.
    Invariants with less confidence than `min_confidence` are not checked.  `program` is the name of
    the checked program and `setting` its configuration: invariants that were learned from it have
    more confidence.
    """

    def __init__(
        self,
        packs: Sequence[Pack],
        relations: Mapping[str, Relation],
        *,
        on_violation: Literal["raise", "collect"] = "collect",
        min_confidence: float = CONFIDENCE,
        program: str = "",
        setting: str = "",
        rank: int = 0,
        first_step: int | None = None,
    ) -> None:
        self.violations: list[Violation] = []
        self._raise = on_violation == "raise"
        self._relations = relations
        self._contexts = Contexts(first_step)
        self.watches = watches_of(packs, relations, min_confidence, program, setting)
        self._checkers: list[Listener] = []
        #: The checkers that read calls of an API, by its name, and changes of a kind of variable,
        #: by the name and the class of the object and the attribute.
        self._of_calls: dict[str, tuple[Listener, ...]] = {}
        self._of_changes: dict[tuple[str, str, str], tuple[Listener, ...]] = {}
        groups: dict[str, list[Watch]] = {}
        for watch in self.watches:
            watch.rank, watch.report = rank, self._report
            groups.setdefault(watch.claim.relation, []).append(watch)
        for name, group in groups.items():
            checker = relations[name].checker(group, self._contexts)
            if checker is not None:
                self._checkers.append(checker)

    def entered(self, call: Call) -> None:
        """Called when a call begins."""
        self._contexts.see(call.meta)
        for checker in self._readers_of_call(call):
            checker.entered(call)

    def left(self, call: Call) -> None:
        """Called when a call has returned or raised."""
        for checker in self._readers_of_call(call):
            checker.left(call)

    def changed(self, change: Change) -> None:
        """Called when an attribute has changed, or was sampled at the end of a step."""
        self._contexts.see(change.meta)
        for checker in self._readers_of_change(change):
            checker.changed(change)

    def step_ended(self, step: int) -> None:
        """Called when the training step `step` has ended."""
        for checker in self._checkers:
            checker.step_ended(step)

    def _readers_of_call(self, call: Call) -> tuple[Listener, ...]:
        found = self._of_calls.get(call.api)
        if found is None:
            found = self._of_calls[call.api] = tuple(
                each
                for each in self._checkers
                if not isinstance(each, Checker) or each.reads_calls(name_of(call))
            )
        return found

    def _readers_of_change(self, change: Change) -> tuple[Listener, ...]:
        key = change.object, change.type, change.attribute
        found = self._of_changes.get(key)
        if found is None:
            found = self._of_changes[key] = tuple(
                each
                for each in self._checkers
                if not isinstance(each, Checker) or each.reads_changes(variable_of(change))
            )
        return found

    def _report(self, violation: Violation) -> None:
        violation.order = len(self.violations)
        if sum(each.invariant is violation.invariant for each in self.violations) < MAX_KEPT:
            self.violations.append(violation)
        if self._raise:
            raise InvariantViolation(violation, message(violation, self._relations))


def watches_of(
    packs: Sequence[Pack],
    relations: Mapping[str, Relation],
    min_confidence: float,
    program: str,
    setting: str,
) -> list[Watch]:
    """A Watch, which judges examples, for each invariant with at least `min_confidence`.

    An invariant that several packs have gets one Watch.  `program` is the checked program, and
    `setting` its configuration.
    """
    found: dict[object, Watch] = {}
    for pack in packs:
        for invariant in pack.invariants:
            relation = relations[invariant.claim.relation]
            if relation.named and program not in {each.program for each in invariant.support}:
                continue
            if confidence(invariant, relation, program, setting) >= min_confidence:
                key = invariant.claim, invariant.precondition
                found.setdefault(key, Watch(invariant, _ignore))
    return list(found.values())


def message(violation: Violation, relations: Mapping[str, Relation]) -> str:
    """The text of a violation: the rule, the record that breaks it, and one that satisfies it.

    What one process did instead ends the first line: a report of one line shows it.
    """
    invariant = violation.invariant
    relation = relations[invariant.claim.relation]
    explanation = relation.explain(invariant.claim)
    instead = f": {violation.detail}" if violation.detail and not relation.several else ""
    lines = [f"{rule_text(invariant, relations)}{instead}"]
    lines.append(f"  broken by: {violation.quoted}")
    if violation.detail and not instead:
        lines.append(f"  where: {violation.detail}")
    if violation.scenarios:
        lines.append(f"  conditions: {in_words(violation.scenarios)}")
    if violation.kept:
        lines.append(f"  kept by: {violation.kept}")
    lines.append(f"  usual cause: {explanation.causes}")
    lines.append(f"  evidence: {evidence_text(invariant)} ({invariant.id})")
    return "\n".join(lines)


def rule_text(invariant: Invariant, relations: Mapping[str, Relation]) -> str:
    """The rule in words, with its precondition: "broken rule: ... (when ...)"."""
    explanation = relations[invariant.claim.relation].explain(invariant.claim)
    return f"broken rule: {in_words(explanation.sentence)}{_when(invariant)}"


def evidence_text(invariant: Invariant) -> str:
    """A phrase on how often the rule was kept, and by how many programs."""
    programs = f"{invariant.programs} program{'s' * (invariant.programs != 1)}"
    return f"kept {invariant.examples} times in {programs}"


def _when(invariant: Invariant) -> str:
    return (
        "" if invariant.precondition.always else f" (when {in_words(str(invariant.precondition))})"
    )


def _ignore(violation: Violation) -> None:
    """Does nothing with a violation.

    `watches_of` gives each Watch this function as its `report`, which the Watch calls for each
    violation.  Whoever uses the Watch replaces it.
    """
