"""Watches parameters whose gradient is zero in every step."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.optim import Optimizer

from pytest_trainsafe.compat.modules import own_parameters
from pytest_trainsafe.judges.learn.instrument.slips.gradients import Gradients
from pytest_trainsafe.judges.learn.instrument.slips.moments import (
    Moment,
    Training,
    Watcher,
    parameters_of,
)

#: The first steps of an optimizer, in which all is looked at.  What begins at zero has moved by
#: then, and what dies later had gradients before.  What is still zero is followed until the end: a
#: term of the loss may get its weight later.
_LAST = 7
#: A gradient of a matrix that is smaller than the largest one by so much is rounding.
_ROUNDING = 1e-6
#: Stands for all parameters of an optimizer.
_ALL = 0


@dataclass(slots=True)
class _Late:
    """A parameter, by its id, whose gradient has been zero, as is said by `text`."""

    key: int
    text: str
    moved: bool = False


@dataclass(slots=True)
class _Of:
    """An optimizer: its steps, and the parameters whose gradients were zero in those looked at.

    `dead` counts the steps in which all gradients were.
    """

    steps: int = 0
    zero: dict[int, torch.Tensor] = field(default_factory=dict)
    moving: set[int] = field(default_factory=set)
    most: float = 0.0
    dead: int = 0
    late: list[_Late] = field(default_factory=list)


class Still(Watcher):
    """Sees steps.  `gradients` knows which gradients a backward has added to."""

    kinds = ("step",)

    def __init__(self, training: Training, gradients: Gradients) -> None:
        super().__init__(training)
        self._gradients = gradients
        self._of: WeakKeyDictionary[Optimizer, _Of] = WeakKeyDictionary()
        self._late: list[_Late] = []

    def entered(self, moment: Moment) -> None:
        optimizer = moment.thing
        if not moment.outermost or moment.argument(0, "closure") is not None:
            return
        state = self._of.setdefault(optimizer, _Of())
        if not any(group.get("lr", 1) for group in optimizer.param_groups):
            return  # what begins at zero has not moved yet
        state.steps += 1
        for late in state.late:
            late.moved |= self._moves(optimizer, state, late.key)
        if state.steps > _LAST or (state.steps > 1 and not state.zero and not state.dead):
            return
        self._look(optimizer, state)
        if state.steps == _LAST:
            self._judge(state)
            state.zero.clear()

    def _moves(self, optimizer: Optimizer, state: _Of, key: int) -> bool:
        for each in parameters_of(optimizer):
            if key in (id(each), _ALL) and each.grad is not None and not each.grad.is_sparse:
                if key == _ALL and not each.grad.detach().any():
                    continue
                return key == _ALL or float(each.grad.detach().abs().max()) > _ROUNDING * state.most
        return False

    def ended(self) -> None:
        for late in self._late:
            if not late.moved:
                self.training.slip("gradient-always-zero", late.text)

    def _look(self, optimizer: Optimizer, state: _Of) -> None:
        touched = self._gradients.touched(optimizer)
        sizes: dict[int, tuple[torch.Tensor, float]] = {}
        for each in parameters_of(optimizer):
            gradient = each.grad
            if gradient is None or type(each) is not nn.Parameter or gradient.is_sparse:
                continue
            if each.dim() < 2:
                continue  # what a bias adds may cancel out, as in the difference of two scores
            if gradient.numel() and id(each) in touched:
                sizes[id(each)] = each, float(gradient.detach().abs().max())
        most = max((size for _, size in sizes.values()), default=0.0)
        state.most = max(state.most, most)
        state.dead += bool(sizes) and not most
        zero = {}
        for key, (each, size) in sizes.items():
            exact = torch.finfo(each.dtype).eps < _ROUNDING
            if most and size <= (_ROUNDING * most if exact else 0.0):
                zero[key] = each
            else:
                state.moving.add(key)
        before = state.zero if state.steps > 1 else zero
        state.zero = {key: each for key, each in zero.items() if key in before}

    def _judge(self, state: _Of) -> None:
        if state.dead == _LAST:
            late = _Late(_ALL, "no parameter of an optimizer has another gradient")
            state.late.append(late)
            self._late.append(late)
        if not state.zero:
            return
        for name, model in self.training.models():
            moving = {
                (_starred(path), each.shape)
                for path, each in model.named_parameters()
                if id(each) in state.moving
            }
            recurrent = {
                id(each)
                for module in model.modules()
                if isinstance(module, nn.RNNBase | nn.RNNCellBase)
                for each in own_parameters(module).values()
            }
            for path, each in model.named_parameters():
                # Of experts that are alike, one may have no examples.
                alone = (_starred(path), each.shape) not in moving and id(each) not in recurrent
                if id(each) in state.zero and alone:
                    late = _Late(id(each), f"{name}.{path}")
                    state.late.append(late)
                    self._late.append(late)
                    return


def _starred(path: str) -> str:
    return re.sub(r"\d+", "*", path)
