"""Graph: the first losses of a program are computed by the same operators.

An operator that is missing, or one too many, changes the values of a training and nothing that a
call of an API shows: a transposition before a view, a term of the loss, a mask, a detach.  The
observer describes the graphs that the first backwards begin with (`instrument/slips/steps/graph.py`
says how), so that another seed, length or number of layers gives the same descriptions.  The claim
names the descriptions of one program, so it is checked on this program only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from pytest_trainsafe.judges.learn.check.checker import Checker, variable_of
from pytest_trainsafe.judges.learn.columns.frame import Frame, Ints
from pytest_trainsafe.judges.learn.events.events import Call, Change
from pytest_trainsafe.judges.learn.events.slips import GRAPH, TRAINING
from pytest_trainsafe.judges.learn.events.table import NONE
from pytest_trainsafe.judges.learn.evidence import Examples
from pytest_trainsafe.judges.learn.invariant import Hypothesis, hypothesis
from pytest_trainsafe.judges.learn.relation import OWN, Explanation, Needs, RelationBase
from pytest_trainsafe.judges.learn.watch import Contexts, Watch

_NAME = TRAINING, GRAPH
#: A program with more different graphs than this chooses them by chance.
_MOST = 3


class Graph(RelationBase):
    """The graph of each of the first losses is one of `graphs`, digests with spaces between."""

    name = "graph"
    forms = ({"graphs": str},)

    def hypotheses(self, frames: Sequence[Frame]) -> Iterable[Hypothesis]:
        """Proposes the graphs of each run, if they are few."""
        for frame in frames:
            found = sorted({_digest(text) for text in _texts(frame)[1]})
            if 0 < len(found) <= _MOST:
                yield hypothesis("graph", graphs=" ".join(found))

    def examples(
        self, frames: Sequence[Frame], claims: Collection[Hypothesis], found: Examples
    ) -> None:
        """Adds an example for each graph that was described."""
        for frame in frames:
            rows, texts = _texts(frame)
            if not texts:
                continue
            records = frame.change_records(rows)
            for claim in claims:
                passed = np.array([_keeps(text, claim) for text in texts], bool)
                found.add(claim, records, passed)

    def forbidden(self, claim: Hypothesis, field: str) -> bool:
        """Forbids all preconditions: which graphs there are says all."""
        return True

    def anywhere(self, claim: Hypothesis) -> bool:
        """True: the claim holds in every context."""
        return True

    def prior(self, claim: Hypothesis) -> int:
        """`OWN`: the operators belong to one program."""
        return OWN

    def needs(self, claim: Hypothesis) -> Needs:
        """The check needs the descriptions of graphs."""
        return Needs(variables=frozenset({_NAME}), contents=frozenset())

    def checker(self, watches: Sequence[Watch], contexts: Contexts) -> Checker:
        """A listener that judges each description."""
        return _Checker(watches, contexts)

    def explain(self, claim: Hypothesis) -> Explanation:
        """The rule in plain words."""
        graphs = claim.text("graphs").split()
        other = "" if len(graphs) == 1 else f" or {' or '.join(graphs[1:])}"
        return Explanation(
            f"the operators that compute each of the first losses are those of the graph "
            f"{graphs[0]}{other}",
            "an operator of the loss or the model was left out or added, such as a transposition, "
            "a mask, a detach or a term of the loss",
        )


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
        for watch in self._watches:
            passed = _keeps(text, watch.claim)
            detail = "" if passed else f"the graph is {text}"
            watch.example(lambda: self.of_change(change), passed, change, detail)


def _texts(frame: Frame) -> tuple[Ints, list[str]]:
    """The rows of the changes that describe graphs, and their texts."""
    if _NAME not in frame.variables:
        return np.zeros(0, np.int64), []
    rows = np.flatnonzero(frame.variable_of_change == frame.variables.index(_NAME))
    texts = frame.values["text"][frame.changes["after"][rows]]
    where = texts != NONE
    return rows[where], [frame.table.texts[int(at)] for at in texts[where]]


def _digest(text: str) -> str:
    return text.partition(":")[0]


def _keeps(text: str, claim: Hypothesis) -> bool:
    return _digest(text) in claim.text("graphs").split()
