"""Records the norms of the gradients that a rank steps with, and which steps its scaler leaves out.

`relations/alike.py` compares the ranks.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
from torch.optim import Optimizer

from pytest_trainsafe.compat.tensors import local_part
from pytest_trainsafe.judges.learn.events.slips import LEFT_OUT, NORM
from pytest_trainsafe.judges.learn.instrument.slips.moments import (
    Moment,
    Training,
    Watcher,
    parameters_of,
)

#: So many rounds are recorded, and the most parameters whose gradients are read.
_ROUNDS, _MANY = 8, 256


class Limits(Watcher):
    """Sees models that run, collectives, scalers and steps, if there are several ranks."""

    kinds = ("module", "collective", "scaler_step", "step")

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        #: Whether a model has run since the last step, and ranks have communicated after that.
        self._open = self._together = False
        #: A number for each optimizer, and how many steps of it a scaler left out since its last.
        self._numbers: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()
        self._left_out: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()

    def entered(self, moment: Moment) -> None:
        if not self.training.ranks:
            return
        if moment.kind == "module":
            self._open |= torch.is_grad_enabled() and moment.thing.training
        elif moment.kind == "collective":
            self._together |= self._open
        elif moment.kind == "scaler_step":
            optimizer = moment.argument(0, "optimizer")
            if isinstance(optimizer, Optimizer):
                self._left_out[optimizer] = self._left_out.get(optimizer, 0) + 1
        elif moment.outermost:
            self._record(moment)

    def _record(self, moment: Moment) -> None:
        assert self.training.shared is not None
        optimizer = moment.thing
        number = self._numbers.setdefault(optimizer, len(self._numbers))
        young = self.training.young < _ROUNDS
        if young and self._together and moment.argument(0, "closure") is None:
            self.training.shared(NORM, f"{number}:{_norm(optimizer)}")
        if young or optimizer in self._left_out:
            # The scaler has entered its step for this one.
            count = self._left_out.get(optimizer, 0) - moment.inside("scaler_step")
            self.training.shared(LEFT_OUT, f"{number}:{count}")
        if optimizer in self._left_out:
            self._left_out[optimizer] = 0
        self._open = self._together = False


def _norm(optimizer: Optimizer) -> str:
    """The norm of all gradients of an optimizer, and their sum; "none" if there are none."""
    squares = total = 0.0
    for each in list(parameters_of(optimizer))[:_MANY]:
        gradient = each.grad
        part = local_part(gradient, gradient) if gradient is not None else None
        if part is not None and not part.is_sparse and part.is_floating_point():
            values = part.detach().double()
            squares += float(values.square().sum())
            total += float(values.sum())
    return f"{squares**0.5!r} {total!r}" if squares else "none"
