"""Finds the conditions under which modules and the optimizer run in the Runs of a localisation.

A module may run in evaluation mode, unlike in the reference; the optimizer may get gradients that
were generated, or not step on some ranks.  Reads the events of `record/training/conditions.py` and
`generated.py`.  Called by `judges.compare.localize.blame` and `description`.
"""

from __future__ import annotations

from typing import Literal

from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.core.usage import name_ranks
from pytest_trainsafe.judges.compare.events import noted
from pytest_trainsafe.judges.compare.rung import RungTraces
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

    def __init__(self, rung: RungTraces) -> None:
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


def unstepped(candidate: Trace) -> str:
    """The sentence on ranks that leave out a step of the optimizer that others make; else ""."""
    steps = {
        rank.rank: {step.step: step.optimizer_stepped for step in rank.steps}
        for rank in candidate.ranks
    }
    ever = {rank: made for rank, made in steps.items() if any(made.values())}
    for step in dict.fromkeys(step for made in ever.values() for step in made):
        left = [rank for rank, made in ever.items() if made.get(step) is False]
        if 0 < len(left) < len(ever):
            does = "leave" if len(left) > 1 else "leaves"
            return (
                f"{name_ranks(left)} {does} out the optimizer's step of step {step}, which the "
                "other ranks make"
            )
    return ""


def _altered(trace: Trace) -> set[tuple[int, int | None, str]]:
    altered = (fact for rank in trace.ranks for fact in rank.events_of(Altered))
    return {(fact.step, fact.microbatch, fact.module) for fact in altered}


class Steps:
    """The parameters that the optimizer updates by generated gradients in the traces of `rung`."""

    def __init__(self, rung: RungTraces) -> None:
        self._rung = rung
        self._sides = [_generated(trace) for trace in (rung.candidate, rung.reference)]

    def alone(self, id: TensorId, path: str) -> bool:
        """Whether both Runs update the parameter `path` by equal gradients in the step of `id`."""
        where = noted(id.step, path)
        return all(where in generated and where not in kept for generated, kept in self._sides)

    def unequal(self, id: TensorId, path: str) -> bool:
        """Whether one Run does so, and the other one does not, or not on every rank."""
        where = noted(id.step, path)
        return not self.alone(id, path) and any(where in made for made, _ in self._sides)

    def updated(self, step: int) -> frozenset[str]:
        """The parameters that both Runs recorded after `step`, and updated by equal gradients."""
        return frozenset(
            id.path
            for id in self._rung.reference.ids()
            if (id.kind, id.step) == ("param", step)
            and self._rung.candidate.holders(id)
            and self.alone(id, id.path)
        )


def _generated(trace: Trace) -> tuple[set[str], set[str]]:
    """The main gradients that any rank generated, and those that any rank kept."""
    generated = {text for rank in trace.ranks for text in rank.note("generated")}
    return generated, {text for rank in trace.ranks for text in rank.note("kept")}


def condition_text(condition: Condition, one: bool) -> str:
    """A clause on what differs when a module's forward runs: its parameters or its mode.

    The mode is training or evaluation.  `one` is true if the clause is about one module, false if
    it is about several.
    """
    if condition == "altered":
        its, differs = ("its", "output differs") if one else ("their", "outputs differ")
        return (
            f"{its} {differs}, and {its} parameters have changed since the step began, while the "
            "reference's have not"
        )
    here, there = ("evaluation", "training")
    if condition == "trained":
        here, there = there, here
    return (
        f"{'it runs' if one else 'they run'} in {here} mode, and in {there} mode in the reference"
    )
