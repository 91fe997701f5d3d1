"""Finds a line that changes a wrong parameter outside of the optimizer's step, on some ranks only.

Replicas of the parameter then differ, although the optimizer steps them alike.  The lines are
recorded in Runs that localise (`record/training/unheld.py`).
"""

from __future__ import annotations

from collections.abc import Collection

from pytest_trainsafe.core.tensor_id import INITIAL
from pytest_trainsafe.core.usage import name_list, name_ranks
from pytest_trainsafe.judges.compare.comparison import Comparison
from pytest_trainsafe.judges.compare.fault.clause import Clause
from pytest_trainsafe.judges.compare.localize.code.lines import NOWHERE, Place, caller_of
from pytest_trainsafe.trace.facts import Changed
from pytest_trainsafe.trace.reader import Trace


class Drift:
    """The first line that changes one of `names` on some of its ranks, and not in the reference.

    It is looked for in the first step in which something is wrong, and only if replicas of `names`
    differ.  `reference` is None if it is not known.
    """

    def __init__(
        self,
        candidate: Trace,
        reference: Trace | None,
        comparison: Comparison,
        names: Collection[str],
    ) -> None:
        self._line: Changed | None = None
        self._names = [*names]
        wrong = [f for f in comparison.findings if f.verdict == "fail" and f.where is not None]
        apart = (f for f in wrong if f.check == "replicas" and f.where and f.where.path in names)
        if next(apart, None) is None:
            return
        self._step = min((f.where.step for f in wrong if f.where), default=INITIAL)
        expected = set() if reference is None else {*self._changes(reference)}
        ranks = self._changes(candidate)
        holders = {
            rank.rank
            for rank in candidate.ranks
            if any(id.kind == "param" and id.path in names for id in rank.tensors)
        }
        for (at, operation), (line, changed) in ranks.items():
            if changed < holders and (at, operation) not in expected:
                self._line, self._ranks = line, name_ranks(sorted(changed))
                return

    def sentence(self) -> str:
        """The sentence on the wrong parameters; "" if there is no such line."""
        if self._line is None:
            return ""
        when = "after" if self._line.stepped else "before"
        names = name_list(self._names, "parameter")
        many = "replicas" if len(self._names) > 1 else "a replica"
        return (
            f"the program's own code changes {many} of {names} {when} the optimizer's step, on "
            f"{self._ranks} alone"
        )

    def place(self) -> Place:
        """The line and what it does; NOWHERE if there is none."""
        if self._line is None:
            return NOWHERE
        what = Clause(f"changes parameters by {self._line.operation} on {self._ranks} alone")
        return Place(self._line.at, (what, *caller_of(self._line)))

    def _changes(self, trace: Trace) -> dict[tuple[str, str], tuple[Changed, set[int]]]:
        """By line and operation, its first event and the ranks on which it changes the names."""
        found: dict[tuple[str, str], tuple[Changed, set[int]]] = {}
        for rank in trace.ranks:
            for line in rank.events_of(Changed):
                if line.step == self._step and not {*self._names}.isdisjoint(line.parameters):
                    found.setdefault((line.at, line.operation), (line, set()))[1].add(rank.rank)
        return found
