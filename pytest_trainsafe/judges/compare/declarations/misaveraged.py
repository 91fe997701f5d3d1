"""Distinguishes a wrongly declared average from wrong code.  Called by the ladder.

`gradients: {mean: [dp]}` declares that a rank's gradients are dp times those of the whole step
until the reduction averages them.  If the declaration is wrong, every tensor before the reduction
is off by the size of an axis, and no tensor after it is.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_trainsafe.core.layout import Partial, Scaled
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.comparison import Comparison
from pytest_trainsafe.judges.compare.declarations.adopt import replace_means
from pytest_trainsafe.judges.compare.declarations.averaged import BEFORE
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.judges.loosen import Loosen
from pytest_trainsafe.trace.facts import Annotations
from pytest_trainsafe.trace.reader import Trace

#: The axes over which a reduction may average.
AXES = ("dp", "cp")

Axes = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Misaveraged:
    """Wrongly declared averages over ranks, and averages with which every tensor passes.

    `gradients` and `loss` are the axes over which gradients and losses are declared to be averages;
    with `fitting_gradients` and `fitting_loss` instead, every tensor passes.  `tensors` counts the
    tensors that fail with the declared axes.  `file` is the annotation file with the declaration,
    "" if the program declares it.
    """

    gradients: Axes
    loss: Axes
    fitting_gradients: Axes
    fitting_loss: Axes
    tensors: int
    file: str

    @property
    def only_adds(self) -> bool:
        """Whether the averages that fit have all those that are declared, and more."""
        kept = {*self.gradients} <= {*self.fitting_gradients}
        return kept and {*self.loss} <= {*self.fitting_loss}


def may_be_misaveraged(rung: RungTraces, comparison: Comparison) -> bool:
    """Whether an average is declared and only tensors from before the reduction are wrong."""
    ids = {f.where for f in comparison.findings if f.verdict == "fail"}
    early = all(id is not None and id.kind in BEFORE for id in ids)
    reduced = bool(comparison.compared["main_grad"])
    return bool(ids) and early and reduced and any(declared_means(rung.candidate))


def misaveraged(
    rung: RungTraces, comparison: Comparison, loosen: Sequence[Loosen]
) -> Misaveraged | None:
    """Returns the declared averages over ranks, and others with which the whole candidate passes.

    Returns None if the declared averages are not at fault, or if no other declaration makes the
    candidate pass.
    """
    if comparison.suspects or not may_be_misaveraged(rung, comparison):
        return None
    gradients, loss = declared_means(rung.candidate)
    count = len({f.where for f in comparison.findings if f.verdict == "fail"})
    for means in _others(rung.candidate, gradients, loss):
        tried = replace_means(rung.candidate, *means)
        if not compare(dataclasses.replace(rung, candidate=tried), loosen).failed:
            used = rung.candidate.ranks[0].events_of(Annotations)
            file = used[0].file if used else ""
            return Misaveraged(gradients, loss, *means, count, file)
    return None


def declared_means(candidate: Trace) -> tuple[Axes, Axes]:
    """Returns the axes over which gradients are declared averages, and the same for losses."""
    gradients: dict[str, None] = {}
    loss: dict[str, None] = {}
    for rank in candidate.ranks:
        for id, event in rank.tensors.items():
            for placement in event.layout:
                if isinstance(placement, Scaled):
                    gradients[placement.axis] = None
                elif id.kind == "loss" and isinstance(placement, Partial) and placement.op == "avg":
                    loss[placement.axis] = None
    return tuple(gradients), tuple(loss)


def _others(candidate: Trace, gradients: Axes, loss: Axes) -> Iterator[tuple[Axes, Axes]]:
    """Yields declarations to try instead of the declared one, each as (gradients, loss).

    `gradients` are the axes over which gradients are declared to be averages, and `loss` the axes
    over which losses are.  The first declarations change only `gradients`.
    """
    axes = [axis for axis in AXES if candidate.sizes[axis] > 1]
    every = [each for count in range(len(axes) + 1) for each in itertools.combinations(axes, count)]
    for its in dict.fromkeys([loss, (), ("dp",)]):
        for each in every:
            if ({*each}, its) != ({*gradients}, loss):
                yield each, its
