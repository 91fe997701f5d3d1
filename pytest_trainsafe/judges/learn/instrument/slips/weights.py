"""Watches whether weights change that nothing should change: between two steps, or frozen ones."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch.optim import Optimizer

from pytest_trainsafe.judges.learn.instrument.slips.moments import Moment, Training, Watcher

#: A frozen weight that is merged with an adapter and taken out again differs by rounding.
_ROUNDING = 1e-4


class Weights(Watcher):
    """Sees steps, and states that are loaded, if the content of parameters is recorded."""

    kinds = ("step", "module_load")

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        #: The hash of each trained parameter after the last step of its optimizer, by its name.
        self._after: WeakKeyDictionary[Optimizer, dict[str, int]] = WeakKeyDictionary()
        #: The norm of each frozen parameter of the models in training after the last step.
        self._frozen: dict[str, float] = {}

    def entered(self, moment: Moment) -> None:
        if moment.kind == "module_load":
            self._after.clear()
            self._frozen.clear()
        elif moment.outermost:
            before = self._after.pop(moment.thing, {})
            now = {name: facts.digest for name, _, facts in self.training.weights()}
            moved = [name for name, digest in before.items() if 0 != now.get(name, 0) != digest]
            # Ranks may average their weights, or give them to each other, between two steps.
            if moved and not (dist.is_available() and dist.is_initialized()):
                more = f" and {len(moved) - 1} more" * (len(moved) > 1)
                self.training.slip("weights-moved", f"{moved[0]}{more}")

    def left(self, moment: Moment) -> None:
        if moment.kind != "step" or moment.failed or not moment.outermost:
            return
        held, trained = self.training.held(), set[str]()
        own = {id(each) for group in moment.thing.param_groups for each in group["params"]}
        after: dict[str, int] = {}
        still: dict[str, float] = {}
        for name, parameter, facts in self.training.weights():
            if parameter.requires_grad:
                if id(parameter) in held:
                    trained.add(name.partition(".")[0])
                if id(parameter) in own and facts.digest:
                    after[name] = facts.digest
            elif facts.norm is not None:
                still[name] = facts.norm
        self._after[moment.thing] = after
        still = {name: norm for name, norm in still.items() if name.partition(".")[0] in trained}
        for name, norm in still.items():
            before = self._frozen.get(name, norm)
            if abs(norm - before) > _ROUNDING * max(norm, before):
                self.training.slip("frozen-moved", f"the norm of {name} was {before:.6g}")
                break
        self._frozen = still
