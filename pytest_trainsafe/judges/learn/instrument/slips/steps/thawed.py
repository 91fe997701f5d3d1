"""Watches parameters that are unfrozen while a model trains."""

from __future__ import annotations

from weakref import ref

import torch

from pytest_trainsafe.judges.learn.instrument.slips.moments import Moment, Training, Watcher


class Thawed(Watcher):
    """Sees steps."""

    kinds = ("step",)

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        #: The frozen parameters of the models at the last step, by id.
        self._frozen: dict[int, ref[torch.Tensor]] = {}

    def entered(self, moment: Moment) -> None:
        if moment.outermost and moment.argument(0, "closure") is None:
            self._thaws()

    def _thaws(self) -> None:
        """Whether parameters that were unfrozen since the last step get gradients in vain.

        A trained layer that goes on in another model, with another optimizer, was never frozen.
        """
        models = list(self.training.models())
        every = [each for _, model in models for each in model.parameters()]
        before = self._frozen
        self._frozen = {id(each): ref(each) for each in every if not each.requires_grad}
        if not before:
            return
        held = self.training.held()
        for name, model in models:
            own = list(model.parameters())
            if not any(id(each) in held for each in own):
                continue
            thawed = [each for each in own if id(each) in before and before[id(each)]() is each]
            alone = [each for each in thawed if each.grad is not None and id(each) not in held]
            if any(each.requires_grad for each in alone):
                self.training.slip("thawed-unheld", f"{len(alone)} parameters of {name}")
                return
