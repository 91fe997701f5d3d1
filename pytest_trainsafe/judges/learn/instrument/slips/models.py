"""Watches how models run: in which mode, with which parts, and whose parameters are frozen."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import nn
from torch.nn.utils.parametrize import ParametrizationList

from pytest_trainsafe.compat.modules import (
    children_of,
    dropout_of,
    is_batch_norm,
    own_parameters,
)
from pytest_trainsafe.judges.learn.instrument.slips.data import tensors_in
from pytest_trainsafe.judges.learn.instrument.slips.moments import Moment, Training, Watcher
from pytest_trainsafe.record.clock import in_backward

#: Layers through which nothing passes if their weight is zero.
_LAYERS = (
    *(nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
)

#: The share from which on a dropout drops nearly all, as where the share to keep was meant.
_MOST = 0.8
#: From this round on, no model is taken for one that nobody trains.
_LATE = 4
#: The most results of models that are remembered.
_FEW = 8


class Models(Watcher):
    """Sees each call of a module and of functional dropout, and changes of the mode."""

    kinds = ("module", "dropout", "mode", "backward", "grad")

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        #: The round in which a model ran last, with gradients and without.
        self._graded: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
        self._quiet: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
        self._inside: WeakKeyDictionary[nn.Module, WeakSet[nn.Module]] = WeakKeyDictionary()
        self._said: WeakSet[nn.Module] = WeakSet()
        #: Norms that were put into evaluation mode one by one: the round, and how often.
        self._stilled: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
        self._times: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
        #: Those of them that have run in it.
        self._rested: WeakSet[nn.Module] = WeakSet()
        #: The last results of models, and the models whose results others have got.
        self._results: list[tuple[weakref.ref[torch.Tensor], weakref.ref[nn.Module]]] = []
        self._feeding: WeakSet[nn.Module] = WeakSet()
        #: The first sizes of what models got in this round.
        self._batches: set[int] = set()
        #: Models that ran in evaluation mode with gradients, which no backward has used.
        self._kept: WeakSet[nn.Module] = WeakSet()
        #: The weights of embeddings and linear layers that a model trained with last, by id.
        self._weights: WeakKeyDictionary[nn.Module, tuple[int, ...]] = WeakKeyDictionary()

    def entered(self, moment: Moment) -> None:
        if moment.kind == "dropout":
            self._dropout(moment)
        elif moment.kind in ("backward", "grad"):
            self._kept.clear()
        elif moment.kind == "mode":
            if moment.outermost and is_batch_norm(moment.thing):
                if moment.api.endswith(".eval") or moment.argument(0, "mode", True) is False:
                    self._stilled[moment.thing] = self.training.rounds
                    self._times[moment.thing] = self._times.get(moment.thing, 0) + 1
                else:
                    self._stilled.pop(moment.thing, None)
        elif in_backward():
            return
        elif moment.outermost:
            self._runs(moment.thing)
            self._gets(moment)
        else:
            self._part(moment)

    def left(self, moment: Moment) -> None:
        several = len(self.training.optimizers) > 1
        if moment.kind == "module" and several and moment.outermost and not in_backward():
            for each in tensors_in(moment.result) if torch.is_grad_enabled() else ():
                self._results = self._results[1 - _FEW :]
                self._results.append((weakref.ref(each), weakref.ref(moment.thing)))

    def _gets(self, moment: Moment) -> None:
        """Note what a model gets: the sizes of its batch, and which model has made it."""
        given = tensors_in([*moment.args, *moment.kwargs.values()])
        if self.training.rounds < _LATE:
            self._batches.update(each.shape[0] for each in given if each.dim())
        for result, model in self._results:
            made, maker = result(), model()
            if made is None or maker is None or maker is moment.thing:
                continue
            if any(each is made or each.data_ptr() == made.data_ptr() for each in given):
                self._feeding.add(maker)

    def _dropout(self, moment: Moment) -> None:
        if moment.api.endswith("scaled_dot_product_attention"):
            share, active = moment.argument(4, "dropout_p", 0.0), True
        else:
            share = moment.argument(1, "p", 0.5)
            active = bool(moment.argument(2, "training", True))
        if not active or not isinstance(share, int | float) or share <= 0:
            return
        modules = [thing for kind, thing in moment.around if kind == "module"]
        if torch.is_grad_enabled():
            if _MOST <= share < 1:
                self.training.slip("dropout-most", f"{share} of the elements")
        elif modules and self.training.rounds:
            # A dropout that forward makes is in training mode, whatever the model is in.
            while len(modules) > 1 and dropout_of(modules[-1]) is not None:
                if any(each is modules[-1] for each in modules[-2].modules()):
                    break
                modules.pop()
            if not modules[-1].training:
                name = type(modules[-1]).__name__
                self.training.slip("dropout-in-evaluation", f"{share} in the forward of {name}")

    def _part(self, moment: Moment) -> None:
        """Whether a module that runs inside a model is one of its modules."""
        model = next(thing for kind, thing in moment.around if kind == "module")
        module = moment.thing
        if module in self._stilled and not module.training:
            self._rested.add(module)
        known = self._inside.get(model)
        if known is not None and module in known:
            return
        known = self._inside[model] = WeakSet(model.modules())
        if module in known or module in self._said or not torch.is_grad_enabled():
            return
        self._said.add(module)
        held = self.training.held()
        if any(each.requires_grad and id(each) not in held for each in module.parameters()):
            self.training.slip(
                "unregistered",
                f"{type(module).__name__} runs in {type(model).__name__}, which does not have it",
            )

    def _runs(self, model: nn.Module) -> None:
        now = self.training.rounds
        if 0 < now < _LATE and model.training and model not in self._said:
            self._teaches(model)
        if torch.is_grad_enabled():
            if not model.training and any(each.requires_grad for each in model.parameters()):
                self._kept.add(model)
            elif model in self._kept:
                self._kept.discard(model)
                self.training.slip(
                    "evaluated-with-graph", f"{_name(model)} ran in evaluation mode, with gradients"
                )
            if self._graded.get(model) != now:
                self._graded[model] = now
                self._trains(model)
            return
        before, self._quiet[model] = self._quiet.get(model), now
        # What runs without gradients in every round is a part of the training, as in a GAN, where
        # several optimizers step in turn.
        often = before is not None and now - before <= max(1, len(self.training.optimizers))
        if not now or often or self._graded.get(model, now) >= now or model in self._feeding:
            return  # a generator draws in training mode as it trains
        if model.training and any(_is_active(each) for each in model.modules()):
            self.training.slip("evaluated-in-training", f"{_name(model)} runs in training mode")

    def _teaches(self, model: nn.Module) -> None:
        """Whether a model that nobody trains, and that is no average of another, has dropout."""
        drops = any(each.training and (dropout_of(each) or 0) > 0 for each in model.modules())
        parameters = list(model.parameters()) if drops else []
        held = self.training.held() if parameters else set()
        if not held or any(id(each) in held or each.grad is not None for each in parameters):
            return
        own = shapes_of(model)
        others = [each for _, each in self.training.models() if each is not model]
        part = {id(each) for other in others for each in other.parameters()}
        if any(id(each) in part for each in parameters):
            return
        if not any(shapes_of(each) == own for each in others):
            self._said.add(model)
            self.training.slip("teacher-in-training", f"{_name(model)} runs in training mode")

    def _trains(self, model: nn.Module) -> None:
        shapes = None
        for module in model.modules():
            if "requires_grad" in vars(module) and module not in self._said:
                self._said.add(module)
                self.training.slip("flag-on-module", f"of {type(module).__name__}")
            if module.training and self._thaws(module):
                self.training.slip("norm-thawed", f"{_name(module)} of {_name(model)}")
            if module.training and _is_frozen_norm(module):
                if shapes is None:
                    shapes = self._is_copy(model)
                if not shapes:
                    self.training.slip("frozen-norm-learns", f"{_name(module)} of {_name(model)}")
                    break
        layers = (each for each in model.modules() if isinstance(each, nn.Embedding | nn.Linear))
        weights = tuple(id(own_parameters(each).get("weight")) for each in layers)
        if self._weights.get(model) != weights:  # also if a resize has replaced layers
            self._weights[model] = weights
            self._untied(model)
        if self.training.rounds == 1:
            self._unheld(model)
            self._zeros(model)
            self._loose(model)

    def _thaws(self, module: nn.Module) -> bool:
        """Whether a norm that was put into evaluation mode is thawed by mistake.

        A program that does so again and again thaws it on purpose, and so does one that rests it
        for a forward without a step, as in an attack.
        """
        stilled = self._stilled.pop(module, None)
        if stilled is None or self._times[module] > 1:
            return False
        return self.training.rounds > stilled or module not in self._rested

    def _unheld(self, model: nn.Module) -> None:
        """Whether no optimizer holds any parameter of a model that has had gradients.

        A model of which all is frozen but its input, as in an attack, has none that were kept.
        """
        held, parameters = self.training.held(), list(model.parameters())
        if not held or not parameters or not model.training:
            return
        shapes = shapes_of(model)
        others = (each for _, each in self.training.models() if each is not model)
        if any(shapes_of(each) == shapes for each in others):
            return  # a copy that learns by hand, as in meta-learning
        if all(each.grad is not None and id(each) not in held for each in parameters):
            self.training.slip(
                "module-held-by-nobody", f"{_name(model)} with {len(parameters)} parameters"
            )

    def _loose(self, model: nn.Module) -> None:
        """Whether a module has a trained tensor that is no parameter of the model."""
        known = {id(each) for each in model.parameters()} | self.training.held()
        for name, module in model.named_modules():
            for attribute, value in vars(module).items():
                if any(self._is_loose(each, known) for each in things_in(value)):
                    where = ".".join(filter(None, (name, attribute)))
                    self.training.slip("parameter-unregistered", f"{where} of {_name(model)}")
                    return

    def _is_loose(self, thing: object, known: set[int]) -> bool:
        """Whether it is a trained tensor that is not known, and no data: those are as many."""
        if not isinstance(thing, torch.Tensor) or id(thing) in known or not _learns(thing):
            return False
        return not thing.dim() or thing.shape[0] == 1 or thing.shape[0] not in self._batches

    def _untied(self, model: nn.Module) -> None:
        """Whether an embedding and a linear layer have two tensors with the same content."""
        tables = [each.weight for each in model.modules() if isinstance(each, nn.Embedding)]
        for linear in model.modules():
            other = linear.weight if isinstance(linear, nn.Linear) else None
            for table in tables if other is not None else ():
                if other is None or other is table or other.shape != table.shape:
                    continue
                if self._read(other) == self._read(table) != 0:
                    self.training.slip("equal-but-untied", f"weights of {_name(model)}")
                    return

    def _read(self, tensor: torch.Tensor) -> int:
        return self.training.digest(tensor, False)

    def _is_copy(self, model: nn.Module) -> bool:
        """Whether a model without trained parameters has the shapes of one with them: a teacher."""
        if any(each.requires_grad for each in model.parameters()):
            return False
        shapes = shapes_of(model)
        return any(
            other is not model and shapes_of(other) == shapes for _, other in self.training.models()
        )

    def _zeros(self, model: nn.Module) -> None:
        held = self.training.held()
        if not any(id(each) in held and each.requires_grad for each in model.parameters()):
            return
        if not all(each.requires_grad for each in model.parameters()):
            self._adapted(model, held)
        for name, module in model.named_modules():
            weight = module.weight if isinstance(module, _LAYERS) else None
            if weight is None or weight.requires_grad or not weight.numel():
                continue
            if not bool(torch.count_nonzero(weight.detach())):
                self.training.slip("frozen-at-zero", f"{name}.weight of {_name(model)}")
                return

    def _adapted(self, model: nn.Module, held: set[int]) -> None:
        for name, module in model.named_modules():
            base, adapters = _adapter_of(module)
            trained = any(each.requires_grad and id(each) in held for each in adapters)
            if trained and any(each.requires_grad and id(each) in held for each in base):
                self.training.slip("adapted-and-trained", f"{name} of {_name(model)}")
                return


def _adapter_of(module: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The weights that a module adapts, and those of its adapter; [] if it adapts none.

    It is a parametrization of torch with parameters of its own, or has a `base_layer`, as peft's.
    """
    if isinstance(module, ParametrizationList):
        own = [each for part in module for each in part.parameters()]
        original = own_parameters(module).get("original")
        return ([] if original is None else [original]), own
    layer = children_of(module).get("base_layer")
    if layer is None:
        return [], []
    base = list(layer.parameters())
    ids = {id(each) for each in base}
    return base, [each for each in module.parameters() if id(each) not in ids]


def shapes_of(model: nn.Module) -> tuple[tuple[int, ...], ...]:
    """The shapes of a model's parameters, in their order."""
    return tuple(tuple(each.shape) for each in model.parameters())


def running_means_of(model: nn.Module) -> Iterator[torch.Tensor]:
    """The running means of a model's batch norms; a norm may keep none."""
    for each in model.modules():
        if is_batch_norm(each) and isinstance(each.running_mean, torch.Tensor):
            yield each.running_mean


def things_in(value: object) -> Iterable[object]:
    """An attribute of a module, or what is in it if it is a container of other things."""
    if isinstance(value, dict):
        return list(value.values()) if not any(map(_is_own, value.values())) else ()
    return list(value) if isinstance(value, list | tuple) else (value,)


def _is_own(thing: object) -> bool:
    return thing is None or isinstance(thing, nn.Module) or callable(thing)


def _learns(tensor: torch.Tensor) -> bool:
    """Whether it is a leaf of the graph that has had a gradient."""
    return tensor.is_leaf and tensor.requires_grad and tensor.grad is not None


def _is_active(module: nn.Module) -> bool:
    """Whether a module draws or learns because it is in training mode."""
    if not module.training:
        return False
    rate = dropout_of(module)
    if rate is not None:
        return rate > 0
    # `update_bn` of torch takes the momentum away while it collects the statistics.
    learns = is_batch_norm(module) and bool(module.track_running_stats)
    return learns and module.momentum is not None


def _is_frozen_norm(module: nn.Module) -> bool:
    if not is_batch_norm(module) or not module.track_running_stats or not module.affine:
        return False
    return not module.get_parameter("weight").requires_grad


def _name(model: nn.Module) -> str:
    return type(model).__name__
