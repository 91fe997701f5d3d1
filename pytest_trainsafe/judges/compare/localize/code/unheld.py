"""Describes wrong parameters that no optimizer holds, and finds the line that changes them.

Such a parameter, of an average or a teacher, changes by the program's own code, as do buffers that
no forward changes.  In the Runs of a localisation, candidate and reference record the lines that do
so (`record/training/unheld.py`).
Called by `judges.compare.localize.description` and `places`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

import msgspec

from pytest_trainsafe.core.code_files import relative
from pytest_trainsafe.core.tensor_id import INITIAL, TensorId
from pytest_trainsafe.core.usage import name_list
from pytest_trainsafe.judges.compare.comparison import Comparison
from pytest_trainsafe.judges.compare.fault.clause import Clause
from pytest_trainsafe.judges.compare.localize.code.lines import NOWHERE, Place, caller_of
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.trace.facts import Changed, Site
from pytest_trainsafe.trace.reader import Trace

#: Numbers that differ by less than this, relative to their size, may differ by rounding only.
_CLOSE = 1e-5

#: The names of collectives, as operations of `Changed`, that only copy what another rank has.
_COPIES = frozenset({"broadcast_", "_allgather_base_", "allgather_", "scatter_", "recv_"})
#: The same, and those that compute what they write from what the ranks have.
COLLECTIVES = _COPIES | {"allreduce_", "allreduce_coalesced_", "reduce_", "_reduce_scatter_base_"}


def changed_between_forwards(wrong: Iterable[TensorId], rung: RungTraces) -> frozenset[str]:
    """The paths of wrong buffers that no forward made wrong, and of which a changing line is known.

    `wrong` is in the order of the dataflow.
    """
    first: dict[str, TensorId] = {}
    for id in wrong:
        first.setdefault(id.path, id)
    ranks = (*rung.candidate.ranks, *rung.reference.ranks)
    lines = [line for rank in ranks for line in rank.events_of(Changed)]
    return frozenset(
        path
        for path, id in first.items()
        if id.microbatch is None
        if any(line.step == id.step and path in line.parameters for line in lines)
    )


class UnheldLines:
    """The lines that change some parameters in the first step in which something is wrong.

    The `names` of buffers stand in place of parameters' if buffers are wrong.  `reference` is None
    if it is not known.
    """

    def __init__(
        self,
        candidate: Trace,
        reference: Trace | None,
        comparison: Comparison,
        names: Collection[str],
    ) -> None:
        failing = [f.where for f in comparison.findings if f.verdict == "fail"]
        wrong = {id.path for id in failing if id is not None and id.kind == "buffer"}
        self._buffers = not wrong.isdisjoint(names)
        self._step = min((id.step for id in failing if id is not None), default=INITIAL)
        self._names = [*names]
        self._candidate = candidate
        self.ours = self._lines(candidate)
        self.theirs = [] if reference is None else self._lines(reference)

    def sentence(self) -> str:
        """The sentence on these parameters, whose values are wrong."""
        them = "it" if len(self._names) == 1 else "them"
        kind, apart = "parameter", f"; no watched optimizer holds {them}"
        if self._buffers:
            kind, apart = "buffer", ""
        text = (
            f"the values of {name_list(self._names, kind)} are wrong{apart}: the program's own "
            f"code changes {them}{self._order()}{other_number(self.ours, self.theirs)}"
        )
        if idle := self._idle():
            ranks = f"rank{'s' if len(idle) > 1 else ''} {', '.join(map(str, idle))}"
            text += f"; on {ranks} no line that changes {them} was seen"
        known = {(line.at, line.operation) for line in self.ours}
        others = [x for x in self.theirs if (x.at, x.operation) not in known]
        if self.ours and others:
            also = "also " if len(others) < len(self.theirs) else ""
            at = f"{others[0].operation} at {relative(others[0].at)}"
            text += f"; the reference {also}changes {them} by {at}"
        return text

    def place(self) -> Place:
        """The line that changes the parameters and what it does; NOWHERE if none was seen.

        A line that does not do so in the reference comes first.
        """
        if not self.ours:
            return NOWHERE if not self.theirs else self._of(self.theirs, " in the reference")
        expected = {(line.at, line.operation, line.stepped) for line in self.theirs}
        odd = [x for x in self.ours if (x.at, x.operation, x.stepped) not in expected]
        if self.theirs and not odd and self._buffers:
            return self._of(self._last(), due=True)
        return self._of(odd if self.theirs and odd else self.ours)

    def _last(self) -> list[Changed]:
        """The lines, from the last to the first: the last one makes the values that are compared.

        Those that call the model come at the end.  A wrapper, such as DistributedDataParallel,
        writes buffers in its call, to give each rank what the first one has.
        """
        sites = (site for rank in self._candidate.ranks for site in rank.events_of(Site))
        model = {line for site in sites if site.what == "model" for line in (site.at, site.user)}
        newest = [*reversed(self.ours)]
        return sorted(newest, key=lambda line: line.at in model)

    def _of(self, lines: Sequence[Changed], where: str = "", due: bool = False) -> Place:
        """The place of the first line; `due` if the reference makes the same change there."""
        line = min(lines, key=lambda each: each.operation in _COPIES)
        what = "buffers" if self._buffers else "parameters that no watched optimizer holds"
        same = ", as in the reference" if due else ""
        text = f"changes {what}{where}, by {line.operation}{same}"
        return Place(line.at, (Clause(text, kind="as due" if due else ""), *caller_of(line)))

    def _order(self) -> str:
        """A clause on the order of change and optimizer's step, if the reference's differs."""
        ours, theirs = ({line.stepped for line in found} for found in (self.ours, self.theirs))
        if (ours, theirs) == ({False}, {True}):
            return " before the optimizer's step, and in the reference after it"
        if (ours, theirs) == ({True}, {False}):
            return " after the optimizer's step, and in the reference before it"
        return ""

    def _idle(self) -> list[int]:
        """The ranks that hold the parameters and saw no line that changes them."""
        if not self.ours:
            return []
        found = []
        for rank in self._candidate.ranks:
            kind = "buffer" if self._buffers else "param"
            held = any(id.kind == kind and id.path in self._names for id in rank.tensors)
            if held and not any(self._matches(line) for line in rank.events_of(Changed)):
                found.append(rank.rank)
        return found

    def _lines(self, trace: Trace) -> list[Changed]:
        """Each line once, without the names, in the order of the ranks."""
        events: Iterable[Changed] = (e for rank in trace.ranks for e in rank.events_of(Changed))
        bare = (msgspec.structs.replace(e, parameters=()) for e in events if self._matches(e))
        return list(dict.fromkeys(bare))

    def _matches(self, line: Changed) -> bool:
        return line.step == self._step and not {*self._names}.isdisjoint(line.parameters)


def other_number(ours: Iterable[Changed], theirs: Iterable[Changed]) -> str:
    """A clause on a number that an operation is given, if the reference gives it another one.

    Compares only operations that each side gives the same numbers in all of their calls.
    """
    mine, others = map(_given, (ours, theirs))
    for key in (key for key in mine if key in others):
        if len(mine[key]) != 1 or len(others[key]) != 1:
            continue
        (here,), (there,) = mine[key], others[key]
        if len(here) == len(there):
            for one, other in zip(here, there, strict=True):
                if not math.isclose(one, other, rel_tol=_CLOSE):
                    at, operation = key
                    return (
                        f"; {operation} at {relative(at)} gets {one:.6g}, and in the "
                        f"reference {other:.6g}"
                    )
    return ""


def _given(lines: Iterable[Changed]) -> dict[tuple[str, str], set[tuple[float, ...]]]:
    """The numbers that the operations of lines are given, by line and operation."""
    found: dict[tuple[str, str], set[tuple[float, ...]]] = {}
    for line in lines:
        found.setdefault((line.at, line.operation), set()).add(line.numbers)
    return found
