"""Finds a line that changes a wrong parameter outside of the optimizer's step, and should not.

If only some ranks run it, replicas of the parameter differ, although the optimizer steps them
alike.  If all do, the reference does not.  The lines are recorded in Runs that localise
(`record/training/unheld.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Literal

from pytest_trainsafe.core.tensor_id import INITIAL
from pytest_trainsafe.core.usage import name_list, name_ranks
from pytest_trainsafe.judges.compare.comparison import Comparison
from pytest_trainsafe.judges.compare.explain.held import parameter_of, unheld
from pytest_trainsafe.judges.compare.fault.clause import Clause
from pytest_trainsafe.judges.compare.localize.code.lines import NOWHERE, Place, caller_of
from pytest_trainsafe.judges.compare.localize.code.unheld import COLLECTIVES, other_number
from pytest_trainsafe.trace.facts import Changed
from pytest_trainsafe.trace.reader import Trace

#: Who runs a line, and what is odd about it: some ranks alone, where the reference does not run it,
#: or does; or every rank, where the reference does not, or gives it another number.
_How = Literal["some", "not all", "all", "otherwise"]

_WHY: dict[_How, str] = {
    "some": "",
    "not all": ": the reference runs this line too, and the other ranks leave it out",
    "all": ", which it does not in the reference",
    "otherwise": "",
}


@dataclass(slots=True)
class _Line:
    """The first event of a line that changes parameters, and by parameter the ranks that run it."""

    event: Changed
    ranks: dict[str, set[int]] = field(default_factory=dict)


class Drift:
    """The first line that changes one of `names` outside the optimizer's step, and should not.

    It is looked for in the first step in which something is wrong.  `reference` is None if it is
    not known.
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
        self._apart = {f.where.path for f in wrong if f.check == "replicas" and f.where} & {*names}
        self._step = min((f.where.step for f in wrong if f.where), default=INITIAL)
        self._holders = _holders(candidate, self._names)
        self._expected = set() if reference is None else {*self._lines(reference)}
        # A master copy that the optimizer steps, or a rank's own part, is copied by design.
        kinds = {id.kind for id in candidate.ids() if parameter_of(id) in self._names}
        stepped = unheld(candidate) is not None and "master_param" not in kinds
        states = any(f.where and f.where.kind == "optimizer_state" for f in wrong)
        lines = self._lines(candidate)
        alone = (
            reference is not None
            and stepped
            and not (states or self._apart or self._expected)
            and not any(operation in COLLECTIVES for _, operation in lines)
        )
        self._number = ""
        for how, line, ranks in self._odd(lines, alone):
            self._line, self._how = line, how
            alike = f"on {name_ranks(sorted(ranks))} alone"
            self._ranks = "" if how == "all" else alike if ranks else "on some of the ranks alone"
            return
        if reference is not None and stepped and not states:
            self._given_otherwise(self._events(candidate), self._events(reference))

    def sentence(self) -> str:
        """The sentence on the wrong parameters; "" if there is no such line."""
        if self._line is None:
            return ""
        when = "after" if self._line.stepped else "before"
        changed = name_list(self._names, "parameter")
        if self._ranks:
            changed = f"{'replicas' if len(self._names) > 1 else 'a replica'} of {changed}"
        where = f", {self._ranks}" if self._ranks else ""
        return (
            f"the program's own code changes {changed} {when} the optimizer's step{where}"
            f"{_WHY[self._how]}{self._number}"
        )

    def place(self) -> Place:
        """The line and what it does; NOWHERE if there is none."""
        if self._line is None:
            return NOWHERE
        where = self._ranks or "and does not in the reference"
        if self._number:
            where = "with another number than in the reference"
        what = Clause(f"changes parameters by {self._line.operation} {where}")
        return Place(self._line.at, (what, *caller_of(self._line)))

    def _odd(
        self, lines: dict[tuple[str, str], _Line], alone: bool
    ) -> Iterator[tuple[_How, Changed, set[int]]]:
        """How each odd line is odd, its event and its ranks, the least doubtful ones first.

        There are no ranks if they differ between the names.  `alone` says that the reference's
        optimizer alone changes the names, as this one should.
        """
        found: list[tuple[_How, Changed, set[int]]] = []
        for key, line in lines.items():
            some = [
                name
                for name, ranks in line.ranks.items()
                if name in self._apart and ranks < self._holders[name]
            ]
            each = [line.ranks[name] for name in some]
            ranks = each[0] if each and all(other == each[0] for other in each) else set[int]()
            if some and key not in self._expected:
                found.append(("some", line.event, ranks))
            elif any(self._left_out(name, lines) for name in some):
                found.append(("not all", line.event, ranks))
            elif alone and all(line.ranks[name] == self._holders[name] for name in line.ranks):
                found.append(("all", line.event, set()))
        order: list[_How] = ["some", "not all", "all"]
        yield from sorted(found, key=lambda each: order.index(each[0]))

    def _given_otherwise(self, ours: list[Changed], theirs: list[Changed]) -> None:
        """Finds a line that both Runs run, and that is given another number in the reference."""
        for line in ours:
            same = [each for each in ours if (each.at, each.operation) == (line.at, line.operation)]
            if number := other_number(same, theirs):
                self._line, self._how, self._ranks, self._number = line, "otherwise", "", number
                return

    def _events(self, trace: Trace) -> list[Changed]:
        """The changes of the names in the step, of all ranks."""
        every = (event for rank in trace.ranks for event in rank.events_of(Changed))
        names = {*self._names}
        return [e for e in every if e.step == self._step and names.intersection(e.parameters)]

    def _left_out(self, name: str, lines: dict[tuple[str, str], _Line]) -> bool:
        """Whether some rank that holds a parameter runs no line that changes it."""
        run = (line.ranks.get(name, set()) for line in lines.values())
        return bool(self._holders[name] - set().union(*run))

    def _lines(self, trace: Trace) -> dict[tuple[str, str], _Line]:
        """By line and operation, the changes of the names in the step."""
        found: dict[tuple[str, str], _Line] = {}
        for rank in trace.ranks:
            for event in rank.events_of(Changed):
                own = {*self._names}.intersection(event.parameters)
                if event.step != self._step or not own:
                    continue
                line = found.setdefault((event.at, event.operation), _Line(event))
                for name in own:
                    line.ranks.setdefault(name, set()).add(rank.rank)
        return found


def _holders(trace: Trace, names: Collection[str]) -> dict[str, set[int]]:
    """By parameter, the ranks that hold it."""
    found: dict[str, set[int]] = {name: set() for name in names}
    for rank in trace.ranks:
        for id in rank.tensors:
            if id.kind == "param" and id.path in found:
                found[id.path].add(rank.rank)
    return found
