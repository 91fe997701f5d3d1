"""Finds modules that run under other conditions than in the reference, such as evaluation mode.

Reads the events of `record/training/conditions.py`.  Called by `judge.localize.blame`.
"""

from __future__ import annotations

from typing import Literal

from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judge.compare.rung import Rung
from pytest_trainsafe.trace.facts import Altered, Site
from pytest_trainsafe.trace.reader import Trace

#: How a module runs, unlike in the reference: its parameters have changed since the step began
#: (altered), or it is in evaluation mode (evaluated) or in training mode (trained).  "" for none.
Condition = Literal["", "altered", "evaluated", "trained"]


class Conditions:
    """The modules that run under another condition in the candidate than in the reference.

    A condition is a mode, or that parameters have changed (`Condition`).  The conditions are read
    from the traces in `rung`, which were recorded with the tensors between modules rewritten.
    """

    def __init__(self, rung: Rung) -> None:
        self._altered = _altered(rung.candidate) - _altered(rung.reference)
        evaluated, expected = evaluations(rung.candidate), evaluations(rung.reference)
        self._evaluated = evaluated.keys() - expected.keys()
        self._trained = expected.keys() - evaluated.keys()

    def of(self, module: str, at: TensorId) -> Condition:
        """The condition of a module in the step and micro-batch of the tensor `at`; "" for none."""
        if (at.step, at.microbatch, module) in self._altered:
            return "altered"
        if module in self._evaluated:
            return "evaluated"
        return "trained" if module in self._trained else ""


def evaluations(trace: Trace) -> dict[str, Site]:
    """Maps each module that ran in evaluation mode on some rank to the line that set the mode."""
    sites = dict.fromkeys(site for rank in trace.ranks for site in rank.events_of(Site))
    return {site.name: site for site in sites if site.what == "mode"}


def _altered(trace: Trace) -> set[tuple[int, int | None, str]]:
    altered = (fact for rank in trace.ranks for fact in rank.events_of(Altered))
    return {(fact.step, fact.microbatch, fact.module) for fact in altered}
