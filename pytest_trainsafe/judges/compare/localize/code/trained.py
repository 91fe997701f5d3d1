"""Finds wrong parameters that the optimizer of one Run alone trains, and where that is set up.

An optimizer may hold a parameter that the reference's does not, as if one is frozen in the
reference only; or both hold it, but a backward reaches it in one of them alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_trainsafe.core.usage import name_list
from pytest_trainsafe.judges.compare.explain.held import unheld
from pytest_trainsafe.judges.compare.explain.module_code import module_code
from pytest_trainsafe.judges.compare.fault.clause import Clause, at
from pytest_trainsafe.judges.compare.localize.code.lines import NOWHERE, Place, own
from pytest_trainsafe.trace.facts import Site
from pytest_trainsafe.trace.reader import Trace

#: What the constructed optimizer does with parameters that only one Run's optimizer holds.
_HOLDS = {
    "reference": "which does not hold",
    "candidate": "which holds",
}


class TrainedApart:
    """Says of the parameters `names` which Run alone trains them; false if both do, or it is open.

    `reference` is None if it is not known.
    """

    def __init__(self, candidate: Trace, reference: Trace | None, names: Sequence[str]) -> None:
        self._candidate = candidate
        self._names = [*names]
        self._held = ""
        #: Whether the candidate's optimizer alone receives gradients of the parameters.
        self.newly = False
        if reference is None or not names:
            return
        wanted = {*names}
        here, there = (unheld(trace) for trace in (candidate, reference))
        ours, theirs = (_differentiated(trace) for trace in (candidate, reference))
        if here is not None and wanted <= here and not (there and wanted & there):
            self._held = "reference"
        elif here is not None and there is not None and wanted <= there and not wanted & here:
            self._held = "candidate"
        self.newly = wanted <= ours and not wanted & theirs and bool(theirs)

    def __bool__(self) -> bool:
        return self.newly or bool(self._held)

    def sentence(self) -> str:
        """The sentence on the parameters; "" if there is nothing to say."""
        names = name_list(self._names, "parameter")
        them = "it" if len(self._names) == 1 else "them"
        if self._held == "reference":
            return f"no watched optimizer holds {names}, but one does in the reference"
        unreached = f"a gradient of {them}, which nothing computes in the reference"
        if self._held == "candidate":
            gets = f", and gets {unreached}" if self.newly else ""
            return f"an optimizer holds {names}, but none does in the reference{gets}"
        return f"the optimizer of {names} gets {unreached}" if self.newly else ""

    def place(self) -> Place:
        """The line that constructs the optimizer, and the class that has the parameters.

        NOWHERE if there is nothing to say, or no such line is known.
        """
        sites = (site for rank in self._candidate.ranks for site in rank.events_of(Site))
        made = next((site for site in sites if site.what == "optimizer"), None)
        line = "" if made is None else made.user or made.at
        if made is None or not self or not own(line):
            return NOWHERE
        names = name_list(self._names, "parameter")
        does = "which gets a gradient of" if self.newly else _HOLDS[self._held]
        return Place(line, (Clause(f"constructs {made.name}, {does} {names}"), *self._classes()))

    def _classes(self) -> list[Clause]:
        """The clause on the class of the first parameter, where it may be frozen or not."""
        modules = {n: e for rank in self._candidate.ranks for n, e in rank.modules.items()}
        cls, line = module_code(modules, self._names[0].rpartition(".")[0])
        return [at(f"{self._names[0]} is in {cls}", line, by=", at ")] if own(line) else []


def _differentiated(trace: Trace) -> set[str]:
    """The parameters of which a trace has gradients."""
    return {id.path for id in trace.ids() if id.kind in ("param_grad", "main_grad")}
