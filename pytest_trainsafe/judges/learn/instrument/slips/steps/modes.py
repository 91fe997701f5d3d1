"""Watches whether models of one optimizer stay in training mode together."""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import nn

from pytest_trainsafe.compat.modules import dropout_of, is_batch_norm
from pytest_trainsafe.judges.learn.instrument.slips.moments import (
    Moment,
    Training,
    Watcher,
    parameters_of,
)
from pytest_trainsafe.record.clock import in_backward

#: In one round, a model may run in evaluation mode with gradients, as in an attack.
_ROUNDS = 2


@dataclass(slots=True)
class _Of:
    """A model: the round in which it was in training mode last, and those that came since."""

    trained: int
    last: int = -1
    rests: int = 0


class TogetherInTraining(Watcher):
    """Sees each outermost call of a model with gradients."""

    kinds = ("module",)

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        self._of: WeakKeyDictionary[nn.Module, _Of] = WeakKeyDictionary()

    def entered(self, moment: Moment) -> None:
        if not moment.outermost or not torch.is_grad_enabled() or in_backward():
            return
        model, now = moment.thing, self.training.rounds
        state = self._of.get(model)
        if model.training:
            if state is None:
                if any(_has_modes(each) for each in model.modules()):
                    self._of[model] = _Of(now)
            else:
                state.trained, state.rests = now, 0
        elif state is not None and state.last != now:
            state.last, state.rests = now, state.rests + 1
            if state.rests == _ROUNDS:
                self._judge(model, now)

    def _judge(self, model: nn.Module, now: int) -> None:
        own = {id(each) for each in model.parameters() if each.requires_grad}
        for other, state in list(self._of.items()):
            if other is model or state.trained < now - 1:
                continue
            its = {id(each) for each in other.parameters() if each.requires_grad}
            for optimizer in list(self.training.optimizers):
                held = {id(each) for each in parameters_of(optimizer)}
                if own - its and held & (own - its) and held & (its - own):
                    self.training.slip(
                        "left-in-evaluation",
                        f"{type(model).__name__} trains in evaluation mode, and "
                        f"{type(other).__name__} beside it does not",
                    )
                    return


def _has_modes(module: nn.Module) -> bool:
    return bool(dropout_of(module)) or is_batch_norm(module)
