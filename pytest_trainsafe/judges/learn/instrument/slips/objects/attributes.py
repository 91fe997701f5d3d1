"""Watches attributes that have no effect, and parameters that were converted as they were set."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import nn
from torch.optim import Optimizer

from pytest_trainsafe.compat.autograd import leaf_of
from pytest_trainsafe.judges.learn.instrument.slips.loading import ties_of
from pytest_trainsafe.judges.learn.instrument.slips.models import things_in
from pytest_trainsafe.judges.learn.instrument.slips.moments import Moment, Training, Watcher
from pytest_trainsafe.record.clock import in_backward

#: How alike two names are of which one is misspelt.
_ALIKE = 0.8
_FLAG = "requires_grad"
#: Names under which a learning rate is set where it has no effect.
_RATES = ("lr", "learning_rate")
#: The most nodes between a tensor and the parameter that it was converted from.
_NODES = 16


class Attributes(Watcher):
    """Sees each outermost call of a model with gradients, and steps."""

    kinds = ("module", "step")

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        #: The pairs of names that models had for one parameter when they ran first.
        self._ties: WeakKeyDictionary[nn.Module, list[tuple[str, str]]] = WeakKeyDictionary()
        self._said: WeakSet[Any] = WeakSet()
        self._rounds = -1

    def entered(self, moment: Moment) -> None:
        thing = moment.thing
        if not moment.outermost or in_backward():
            return
        if moment.kind == "step":
            self._rate(thing)
        elif torch.is_grad_enabled():
            if thing not in self._ties:
                self._ties[thing] = ties_of(thing)
                self._converted(thing)
            if thing not in self._said and self._rounds != self.training.rounds:
                self._rounds = self.training.rounds
                self._misspelt(thing)
                self._untied(thing)

    def _untied(self, model: nn.Module) -> None:
        ties = self._ties[model]
        own = dict(model.named_parameters(remove_duplicate=False)) if ties else {}
        for first, second in ties:
            if first in own and second in own and own[first] is not own[second]:
                self._ties[model] = []
                self.training.slip("ties-broken", f"{first} and {second} are two tensors now")
                return

    def _misspelt(self, model: nn.Module) -> None:
        things: Iterable[object] = (*model.modules(), *model.parameters())
        for thing in things:
            for name in vars(thing):
                if name[:3] != _FLAG[:3] or name == _FLAG:
                    continue  # most names, at once
                if not difflib.get_close_matches(name, [_FLAG], 1, _ALIKE):
                    continue
                self._said.add(model)
                self.training.slip("flag-misspelt", f"{name} of a {type(thing).__name__}")
                return

    def _rate(self, optimizer: Optimizer) -> None:
        if optimizer in self._said or not type(optimizer).__module__.startswith("torch."):
            return
        rates = [group.get("lr") for group in optimizer.param_groups]
        for name in _RATES:
            places = [vars(optimizer)] + (optimizer.param_groups if name != "lr" else [])
            for place in places:
                value = place.get(name)
                if isinstance(value, int | float) and value not in rates:
                    self._said.add(optimizer)
                    where = "the optimizer" if place is vars(optimizer) else "a group"
                    self.training.slip("rate-without-effect", f"{name} of {where} is {value}")
                    return

    def _converted(self, model: nn.Module) -> None:
        """Whether a tensor was made from a parameter before the model ran, and nobody has that."""
        known = {id(each) for each in model.parameters()} | self.training.held()
        for name, module in model.named_modules():
            for attribute, value in vars(module).items():
                for each in things_in(value):
                    if isinstance(each, torch.Tensor) and _is_orphan(each, known):
                        where = ".".join(filter(None, (name, attribute)))
                        self.training.slip(
                            "parameter-unregistered",
                            f"{where} of {type(model).__name__} is computed from one",
                        )
                        return


def _is_orphan(tensor: torch.Tensor, known: set[int]) -> bool:
    waiting: list[Any] = [tensor.grad_fn]
    leaves: list[torch.Tensor] = []
    for _ in range(_NODES):
        if not waiting:
            break
        node = waiting.pop()
        if node is None:
            continue
        leaf = leaf_of(node)
        leaves += [] if leaf is None else [leaf]
        waiting += [each for each, _ in node.next_functions]
    return bool(leaves) and not any(id(each) in known for each in leaves)
