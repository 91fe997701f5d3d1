"""Notes what is constant in the graphs of losses, in the first rounds of each phase."""

from __future__ import annotations

import torch

from pytest_trainsafe.compat.compiler import compiles
from pytest_trainsafe.judges.learn.events.slips import NOTED, noted
from pytest_trainsafe.judges.learn.instrument.slips.moments import Moment, Training, Watcher
from pytest_trainsafe.judges.learn.instrument.slips.notes import ROUNDS
from pytest_trainsafe.judges.learn.instrument.slips.notes.constants import facts_of
from pytest_trainsafe.judges.learn.instrument.slips.steps.graph import described

#: So many losses of a round are looked at.
_LOSSES = 2
#: The most facts of one graph that are noted.
_FACTS = 96


class LossGraphs(Watcher):
    """Sees activation checkpointing, what backwards begin with, and steps."""

    kinds = ("checkpoint", "backward", "step")

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        self._losses = 0
        self._recomputes = False

    def entered(self, moment: Moment) -> None:
        if self.training.note is None:
            return
        if moment.kind == "checkpoint":
            self._recomputes = True
        elif moment.kind == "step":
            if moment.outermost:
                self._losses, self._recomputes = 0, False
        elif moment.outermost and self.training.young < ROUNDS and self._losses < _LOSSES:
            total = moment.thing
            if isinstance(total, torch.Tensor) and total.grad_fn is not None and not compiles():
                self._losses += 1
                self._note(total)

    def _note(self, total: torch.Tensor) -> None:
        assert self.training.note is not None
        graph = described(total).partition(":")[0]
        facts = facts_of(total, not self._recomputes)
        if facts is None or not graph:
            return
        for name, value in facts[:_FACTS]:
            self.training.note(NOTED, noted(f"{name} in the graph {graph}", value))
