"""What relations share whose claims are on the texts that the observer records of a training."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import ClassVar

import numpy as np

from pytest_trainsafe.judges.learn.check.checker import Checker, variable_of
from pytest_trainsafe.judges.learn.columns.frame import Frame, Ints
from pytest_trainsafe.judges.learn.events.events import Call, Change
from pytest_trainsafe.judges.learn.events.slips import TRAINING
from pytest_trainsafe.judges.learn.events.table import NONE
from pytest_trainsafe.judges.learn.invariant import Hypothesis
from pytest_trainsafe.judges.learn.relation import Needs, RelationBase
from pytest_trainsafe.judges.learn.watch import Contexts, Watch


class RecordedRelation(RelationBase):
    """A relation on the texts of one attribute of a training, `attribute`, in every context."""

    attribute: ClassVar[str]

    @abstractmethod
    def judge(self, text: str, claim: Hypothesis) -> tuple[bool, str]:
        """Whether a text keeps a claim, and what broke it, "" if it is kept."""

    def forbidden(self, claim: Hypothesis, field: str) -> bool:
        """Forbids all preconditions: a text says all that the claim is about."""
        return True

    def anywhere(self, claim: Hypothesis) -> bool:
        """True: the claim holds in every context."""
        return True

    def needs(self, claim: Hypothesis) -> Needs:
        """The check needs the texts."""
        return Needs(variables=frozenset({(TRAINING, self.attribute)}), contents=frozenset())

    def checker(self, watches: Sequence[Watch], contexts: Contexts) -> Checker:
        """A listener that judges each text."""
        return TextChecker(self, watches, contexts)


class TextChecker(Checker):
    """Judges each text of the relation's attribute."""

    def __init__(
        self, relation: RecordedRelation, watches: Sequence[Watch], contexts: Contexts
    ) -> None:
        super().__init__(contexts)
        self._judge = relation.judge
        self._name = TRAINING, relation.attribute
        self.watches = watches

    def reads_calls(self, api: str) -> bool:
        return False

    def reads_changes(self, variable: tuple[str, str]) -> bool:
        return variable == self._name

    def left(self, call: Call) -> None:
        """Reads no calls."""

    def changed(self, change: Change) -> None:
        if variable_of(change) != self._name:
            return
        text = str(change.after.plain)
        for watch in self.watches_for(text, change):
            passed, detail = self._judge(text, watch.claim)
            watch.example(lambda: self.of_change(change), passed, change, detail)

    def watches_for(self, text: str, change: Change) -> Iterable[Watch]:
        """The invariants that a text is judged by."""
        return self.watches


def texts_of(frame: Frame, attribute: str) -> tuple[Ints, list[str]]:
    """The rows of the changes of an attribute, and their texts, "" for none."""
    if (TRAINING, attribute) not in frame.variables:
        return np.zeros(0, np.int64), []
    rows = np.flatnonzero(frame.variable_of_change == frame.variables.index((TRAINING, attribute)))
    texts = frame.values["text"][frame.changes["after"][rows]]
    return rows, ["" if at == NONE else frame.table.texts[int(at)] for at in texts]
