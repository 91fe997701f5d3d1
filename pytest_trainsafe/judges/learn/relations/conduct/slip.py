"""Slip: none of the known slips of training loops happens.

The slips (`events/slips.py`) are said in roles, such as the optimizer, and not in names of one
program, so that rules learned from other programs hold too.  The observer notices them.  A program
in which a slip is meant, such as dropout in evaluation, is a counterexample.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from pytest_trainsafe.judges.learn.check.checker import Checker, variable_of
from pytest_trainsafe.judges.learn.columns.frame import Frame
from pytest_trainsafe.judges.learn.events.events import Call, Change
from pytest_trainsafe.judges.learn.events.slips import SLIP, SLIPS, TRAINING, slip_in
from pytest_trainsafe.judges.learn.events.table import NONE
from pytest_trainsafe.judges.learn.evidence import Examples
from pytest_trainsafe.judges.learn.invariant import Hypothesis, hypothesis
from pytest_trainsafe.judges.learn.relation import OWN, Explanation, Needs, RelationBase
from pytest_trainsafe.judges.learn.watch import Contexts, Watch

_NAME = TRAINING, SLIP


class Slip(RelationBase):
    """The slip `slip` does not happen."""

    name = "slip"
    forms = ({"slip": tuple(SLIPS)},)

    def hypotheses(self, frames: Sequence[Frame]) -> Iterable[Hypothesis]:
        """Proposes one claim for each slip, if slips were watched for."""
        if any(_NAME in frame.variables for frame in frames):
            for slip in SLIPS:
                yield hypothesis("slip", slip=slip)

    def examples(
        self, frames: Sequence[Frame], claims: Collection[Hypothesis], found: Examples
    ) -> None:
        """Adds an example for each step, and a failing one for each slip."""
        for frame in frames:
            if _NAME not in frame.variables:
                continue
            rows = np.flatnonzero(frame.variable_of_change == frame.variables.index(_NAME))
            texts = frame.values["text"][frame.changes["after"][rows]]
            slips = ["" if at == NONE else slip_in(frame.table.texts[int(at)]) for at in texts]
            records = frame.change_records(rows)
            for claim in claims:
                passed = np.array([slip != claim["slip"] for slip in slips], bool)
                found.add(claim, records, passed)

    def forbidden(self, claim: Hypothesis, field: str) -> bool:
        """Forbids all preconditions: a slip is noticed where it happens, and a step has no slip."""
        return True

    def prior(self, claim: Hypothesis) -> int:
        """1, the neutral number; `OWN` for a slip that is often meant."""
        return OWN if SLIPS[claim.text("slip")].often else 1

    def anywhere(self, claim: Hypothesis) -> bool:
        """True: the claim holds in every context."""
        return True

    def needs(self, claim: Hypothesis) -> Needs:
        """The check needs the record of slips."""
        return Needs(variables=frozenset({_NAME}), contents=frozenset())

    def checker(self, watches: Sequence[Watch], contexts: Contexts) -> Checker:
        """A listener that judges each record of slips."""
        return _Checker(watches, contexts)

    def explain(self, claim: Hypothesis) -> Explanation:
        """The rule in plain words."""
        known = SLIPS[claim.text("slip")]
        return Explanation(known.rule, known.causes)


class _Checker(Checker):
    def __init__(self, watches: Sequence[Watch], contexts: Contexts) -> None:
        super().__init__(contexts)
        self._watches = watches

    def reads_calls(self, api: str) -> bool:
        return False

    def reads_changes(self, variable: tuple[str, str]) -> bool:
        return variable == _NAME

    def left(self, call: Call) -> None:
        """Reads no calls."""

    def changed(self, change: Change) -> None:
        if variable_of(change) != _NAME:
            return
        text = str(change.after.plain)
        slip = slip_in(text)
        for watch in self._watches:
            passed = slip != watch.claim["slip"]
            detail = "" if passed else text.partition(": ")[2]
            watch.example(lambda: self.of_change(change), passed, change, detail)
