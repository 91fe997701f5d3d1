"""Watches copies of the model in training: averages that are evaluated."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import nn

from pytest_trainsafe.judges.learn.instrument.slips.gradients import Gradients
from pytest_trainsafe.judges.learn.instrument.slips.models import running_means_of, shapes_of
from pytest_trainsafe.judges.learn.instrument.slips.moments import Moment, Training, Watcher
from pytest_trainsafe.record.clock import in_backward

#: A copy is judged if it first runs after so many steps: a reference runs from the first on.
_ROUNDS = 2
#: How many parameters stand for all of a model.
_FEW = 3


@dataclass(frozen=True, slots=True)
class _Start:
    """A model when its training began: the content of some parameters, and of its norms."""

    shapes: tuple[tuple[int, ...], ...]
    parameters: tuple[int, ...]
    buffers: tuple[int, ...]


class Copies(Watcher):
    """Sees each call of a model, and the updates of torch's averages."""

    kinds = ("module", "average", "scaler_step")

    def __init__(self, training: Training, gradients: Gradients) -> None:
        super().__init__(training)
        self._gradients = gradients
        self._starts: WeakKeyDictionary[nn.Module, _Start] = WeakKeyDictionary()
        self._ran: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
        #: The round in which each average was updated last, and how many steps a scaler had made
        #: or left out by then.
        self._averaged: WeakKeyDictionary[nn.Module, tuple[int, int]] = WeakKeyDictionary()
        self._scaled = 0

    def entered(self, moment: Moment) -> None:
        if moment.kind == "average":
            model = moment.argument(0, "model")
            if isinstance(model, nn.Module) and self._gradients.fresh_for(model):
                self.training.slip("averaged-before-step", "gradients wait for the step")
            before, now = self._averaged.get(moment.thing), (self.training.rounds, self._scaled)
            self._averaged[moment.thing] = now
            if before == now:
                self.training.slip("averaged-again", "no step came between two updates")
        elif moment.kind == "scaler_step":
            self._scaled += 1
        elif moment.outermost and not in_backward():
            self._runs(moment.thing)

    def _runs(self, model: nn.Module) -> None:
        now = self.training.rounds
        if now < _ROUNDS:
            if torch.is_grad_enabled() and model.training and model not in self._starts:
                self._starts[model] = self._start(model)
            self._ran[model] = now
            return
        if model.training:
            return  # as `update_bn` runs an average, to collect its statistics
        before = self._ran.get(model)
        self._ran[model] = now
        if before in (now, now - 1) or model in self._starts or not self._starts:
            return
        held = self.training.held()
        if any(id(each) in held for each in model.parameters()):
            return
        shapes = shapes_of(model)
        for trained, start in list(self._starts.items()):
            if start.shapes == shapes and any(id(each) in held for each in trained.parameters()):
                self._judge(model, trained, start)
                return

    def _judge(self, model: nn.Module, trained: nn.Module, start: _Start) -> None:
        found, latest = self._start(model), self._start(trained)
        name = type(model).__name__
        if found.parameters == start.parameters != latest.parameters:
            self.training.slip(
                "average-never-updated",
                f"{name} has the weights with which the training began, and runs without them",
            )
        elif found.buffers == start.buffers != latest.buffers:
            self.training.slip(
                "average-lacks-buffers",
                f"the norms of {name} have the statistics with which the training began",
            )

    def _start(self, model: nn.Module) -> _Start:
        few = list(model.parameters())[-_FEW:]
        means = itertools.islice(running_means_of(model), _FEW)
        return _Start(
            shapes_of(model),
            tuple(self.training.digest(each, True) for each in few),
            tuple(self.training.digest(each, True) for each in means),
        )
