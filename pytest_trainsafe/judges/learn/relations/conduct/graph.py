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

from pytest_trainsafe.judges.learn.columns.frame import Frame, Ints
from pytest_trainsafe.judges.learn.events.slips import GRAPH
from pytest_trainsafe.judges.learn.evidence import Examples
from pytest_trainsafe.judges.learn.invariant import Hypothesis, hypothesis
from pytest_trainsafe.judges.learn.relation import OWN, Explanation
from pytest_trainsafe.judges.learn.relations.conduct.recorded import RecordedRelation, texts_of

#: A program with more different graphs than this chooses them by chance.
_MOST = 3


class Graph(RecordedRelation):
    """The graph of each of the first losses is one of `graphs`, digests with spaces between."""

    name = "graph"
    attribute = GRAPH
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

    def prior(self, claim: Hypothesis) -> int:
        """`OWN`: the operators belong to one program."""
        return OWN

    def judge(self, text: str, claim: Hypothesis) -> tuple[bool, str]:
        """Whether the graph is one of the claim's."""
        passed = _keeps(text, claim)
        return passed, "" if passed else f"the graph is {text}"

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


def _texts(frame: Frame) -> tuple[Ints, list[str]]:
    """The rows of the changes that describe graphs, and their texts."""
    rows, texts = texts_of(frame, GRAPH)
    described = np.array([bool(text) for text in texts], bool)
    return rows[described], [text for text in texts if text]


def _digest(text: str) -> str:
    return text.partition(":")[0]


def _keeps(text: str, claim: Hypothesis) -> bool:
    return _digest(text) in claim.text("graphs").split()
