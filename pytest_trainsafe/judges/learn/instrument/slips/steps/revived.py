"""Watches whether steps revive weights that the program has set to zero, without a gradient."""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.optim import Optimizer

from pytest_trainsafe.judges.learn.instrument.slips.moments import (
    Moment,
    Training,
    Watcher,
    parameters_of,
)

#: So many weights are no chance, and larger parameters are not looked at.
_FEW, _LARGE = 8, 1 << 20
#: The most parameters that are looked at.
_MANY = 256


@dataclass(slots=True)
class _Zeros:
    """A parameter, and where it and its gradient were zero before a step."""

    parameter: torch.Tensor
    where: torch.Tensor


class Revived(Watcher):
    """Sees steps."""

    kinds = ("step",)

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        self._of: WeakKeyDictionary[Optimizer, list[_Zeros]] = WeakKeyDictionary()

    def entered(self, moment: Moment) -> None:
        if not moment.outermost or moment.argument(0, "closure") is not None:
            return
        for zeros in self._of.pop(moment.thing, []):
            # A program that sets them to zero again after each step has done so by now.
            count = int((zeros.parameter.detach()[zeros.where] != 0).sum())
            if 2 * count > int(zeros.where.sum()):
                self.training.slip(
                    "zeros-revived", f"{count} weights that were zero, and had no gradient"
                )
                return
        found = []
        for each in list(parameters_of(moment.thing))[:_MANY]:
            gradient = each.grad
            if type(each) is not nn.Parameter or each.dim() < 2 or each.numel() > _LARGE:
                continue
            if gradient is None or gradient.is_sparse or not moment.thing.state.get(each):
                continue  # without a state, nothing but a decay moves it, and zero stays zero
            where = (each.detach() == 0) & (gradient.detach() == 0)
            if _FEW <= int(where.sum()) < each.numel():
                found.append(_Zeros(each, where))
        self._of[moment.thing] = found
