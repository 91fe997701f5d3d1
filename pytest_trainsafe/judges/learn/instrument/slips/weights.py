"""Watches whether weights change that nothing should change: between two steps, or frozen ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from pytest_trainsafe.compat.modules import own_parameters
from pytest_trainsafe.judges.learn.instrument.slips.moments import Moment, Training, Watcher

#: A frozen weight that is merged with an adapter and taken out again differs by rounding.
_ROUNDING = 1e-4
#: How far a squared norm may be from that of an average, relative to how far it has moved.
_APART = 0.02


class _Products(NamedTuple):
    """The inner products of a frozen parameter and a trained one."""

    own: float
    mixed: float
    other: float


class Weights(Watcher):
    """Sees steps, and states that are loaded, if the content of parameters is recorded."""

    kinds = ("step", "module_load")

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        #: The hash of each trained parameter after the last step of its optimizer, by its name.
        self._after: WeakKeyDictionary[Optimizer, dict[str, int]] = WeakKeyDictionary()
        #: The norm of each frozen parameter of the models in training after the last step.
        self._frozen: dict[str, float] = {}
        #: The name of the trained parameter that a frozen one may be an average of.
        self._twins: Mapping[str, str] = {}
        #: What each of these pairs had after the last step.
        self._products: dict[str, _Products] = {}

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
            self._accept_averages()

    def left(self, moment: Moment) -> None:
        if moment.kind != "step" or moment.failed or not moment.outermost:
            return
        held, trained = self.training.held(), set[str]()
        own = {id(each) for group in moment.thing.param_groups for each in group["params"]}
        after: dict[str, int] = {}
        still: dict[str, float] = {}
        tensors: dict[str, torch.Tensor] = {}
        learning: dict[str, torch.Tensor] = {}
        for name, parameter, facts in self.training.weights():
            tensors[name] = parameter
            if parameter.requires_grad:
                if id(parameter) in held:
                    trained.add(name.partition(".")[0])
                    learning[name] = parameter
                if id(parameter) in own and facts.digest:
                    after[name] = facts.digest
            elif facts.norm is not None:
                still[name] = facts.norm
        self._after[moment.thing] = after
        still = {name: norm for name, norm in still.items() if name.partition(".")[0] in trained}
        for name, norm in still.items():
            before = self._frozen.get(name, norm)
            if abs(norm - before) > _ROUNDING * max(norm, before) and self._of_layer(tensors[name]):
                self.training.slip("frozen-moved", f"the norm of {name} was {before:.6g}")
                break
        if still.keys() != self._frozen.keys():
            self._twins = _twins({name: tensors[name] for name in still}, learning)
        self._frozen = still
        self._products = {
            name: _products(tensors[name], learning[twin])
            for name, twin in self._twins.items()
            if name in still and twin in learning
        }

    def _of_layer(self, parameter: torch.Tensor) -> bool:
        """Whether it is of a layer of torch.  Codes and prototypes may be moved by hand."""
        return any(
            each is parameter
            for _, model in self.training.models()
            for module in model.modules()
            if type(module).__module__.startswith("torch.") and not isinstance(module, nn.Embedding)
            for each in own_parameters(module).values()
        )

    def _accept_averages(self) -> None:
        """Take the new norms of frozen parameters that have moved as averages of trained ones.

        Since the last step, the trained parameters have not changed, unless the program moves them.
        """
        if not self._products:
            return
        now = {name: (tensor, facts) for name, tensor, facts in self.training.weights()}
        for name, before in self._products.items():
            if name not in now or self._twins[name] not in now:
                continue
            (frozen, facts), (trained, _) = now[name], now[self._twins[name]]
            old, new = self._frozen[name], facts.norm
            if new is None or abs(new - old) <= _ROUNDING * max(new, old):
                continue
            if _averaged(before, _products(frozen, trained)):
                self._frozen[name] = new


def _twins(
    frozen: Mapping[str, torch.Tensor], trained: Mapping[str, torch.Tensor]
) -> Mapping[str, str]:
    """For a frozen parameter, a trained one of its shape whose name differs in one part.

    So `model.target.0.weight` may be an average of `model.online.0.weight`.  Both are whole: the
    inner product of DTensors would be a collective.
    """
    places = {
        (tuple(tensor.shape), *key): name
        for name, tensor in trained.items()
        if type(tensor) is nn.Parameter
        for key in _keys(name)
    }
    found: dict[str, str] = {}
    for name, tensor in frozen.items():
        if type(tensor) is nn.Parameter:
            keys = ((tuple(tensor.shape), *key) for key in _keys(name))
            twin = next((places[key] for key in keys if key in places), None)
            if twin is not None:
                found[name] = twin
    return found


def _keys(name: str) -> list[tuple[object, ...]]:
    """The parts of a name without each of them."""
    parts = name.split(".")
    return [(at, *parts[:at], *parts[at + 1 :]) for at in range(len(parts))]


def _products(frozen: torch.Tensor, trained: torch.Tensor) -> _Products:
    one, other = (each.detach().flatten().double() for each in (frozen, trained))
    return _Products(float(one @ one), float(one @ other), float(other @ other))


def _averaged(before: _Products, now: _Products) -> bool:
    """Whether a frozen parameter f has become s f + (1 - s) t, with 0 <= s < 1, for a trained t.

    The product of the new f with t tells s, and the norm of the new f has to be the one that
    follows.  Decay by hand, or an adapter that is added, does not pass.
    """
    away = before.mixed - before.other
    if not away or abs(now.other - before.other) > _ROUNDING * before.other:
        return False
    share = (now.mixed - now.other) / away
    new = (share * share, 2 * share * (1 - share), (1 - share) ** 2)
    expected = sum(part * product for part, product in zip(new, before, strict=True))
    return -_ROUNDING <= share < 1 and abs(expected - now.own) <= _APART * abs(now.own - before.own)
