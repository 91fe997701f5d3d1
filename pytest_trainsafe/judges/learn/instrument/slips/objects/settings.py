"""Watches the settings of optimizers, and whether what they step with may be lost in float16."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
from torch.optim import Optimizer

from pytest_trainsafe.judges.learn.instrument.slips.moments import (
    Moment,
    Training,
    Watcher,
    parameters_of,
)


class Settings(Watcher):
    """Sees models that run, losses that are scaled, and steps."""

    kinds = ("module", "scale", "step")

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        #: How many steps of optimizers there had been when each stepped last.
        self._last: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()
        self._count = 0
        #: Whether a model ran in float16 since the last step, and whether a loss was scaled.
        self._half = self._scaled = False

    def entered(self, moment: Moment) -> None:
        if moment.kind == "scale":
            self._scaled |= bool(moment.thing.is_enabled())
        elif moment.kind == "module":
            if moment.outermost and not self._half and torch.is_grad_enabled():
                self._half = _autocasts_to_half()
        elif moment.outermost:
            self._step(moment.thing)

    def _step(self, optimizer: Optimizer) -> None:
        if self._half and not self._scaled:
            self.training.slip("half-unscaled", "a model ran in autocast to float16")
        self._half = self._scaled = False
        self._count += 1
        before, self._last[optimizer] = self._last.get(optimizer), self._count
        if before is None:
            for group in optimizer.param_groups:
                betas = group.get("betas")
                if isinstance(betas, tuple | list) and len(betas) == 2 and betas[0] > betas[1]:
                    self.training.slip("betas-swapped", f"betas are {tuple(betas)}")
            self._decays(optimizer)
            return
        between = [each for each, at in self._last.items() if before < at < self._count]
        mine = {id(each) for each in parameters_of(optimizer) if each.grad is not None}
        for other in between if mine else ():
            shared = sum(id(each) in mine for each in parameters_of(other))
            if shared:
                self.training.slip(
                    "held-twice", f"{shared} parameters, of {type(optimizer).__name__} and another"
                )
                return

    def _decays(self, optimizer: Optimizer) -> None:
        """Whether weights decay that should not, and the others do not."""
        decays, others = (
            [
                each
                for group in optimizer.param_groups
                for each in group["params"]
                if bool(group.get("weight_decay")) is wanted
            ]
            for wanted in (True, False)
        )
        if decays and max(each.dim() for each in decays) <= 1:
            matrices = sum(each.dim() > 1 for each in others)
            if matrices:
                self.training.slip(
                    "decay-inverted", f"{len(decays)} vectors decay, and {matrices} matrices do not"
                )


def _autocasts_to_half() -> bool:
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            return torch.get_autocast_dtype(device) is torch.float16
    return False
