"""Watches copies of the model in training: averages that are evaluated."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from pytest_trainsafe.compat.modules import is_batch_norm
from pytest_trainsafe.judges.learn.instrument.slips.gradients import Gradients
from pytest_trainsafe.judges.learn.instrument.slips.models import running_means_of, shapes_of
from pytest_trainsafe.judges.learn.instrument.slips.moments import Moment, Training, Watcher
from pytest_trainsafe.record.clock import in_backward

#: A copy is judged if it first runs after so many steps: a reference runs from the first on.
_ROUNDS = 2
#: How many parameters stand for all of a model.
_FEW = 3
#: How many elements of a parameter stand for it, and which part of a step is no average.
_LOOKED, _PART = 64, 0.02
#: So many weights that have moved are no chance, and the share that a copy has not followed.
_ELEMENTS, _KEPT = 16, 0.5


@dataclass(frozen=True, slots=True)
class _Start:
    """A model when its training began: the content of some parameters, and of its norms."""

    shapes: tuple[tuple[int, ...], ...]
    parameters: tuple[int, ...]
    buffers: tuple[int, ...]


class Copies(Watcher):
    """Sees each call of a model, and the updates of torch's averages."""

    kinds = ("module", "average", "scaler_step", "step")

    def __init__(self, training: Training, gradients: Gradients) -> None:
        super().__init__(training)
        self._gradients = gradients
        self._starts: WeakKeyDictionary[nn.Module, _Start] = WeakKeyDictionary()
        self._ran: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
        #: The round in which each average was updated last, and how many steps a scaler had made
        #: or left out by then.
        self._averaged: WeakKeyDictionary[nn.Module, tuple[int, int]] = WeakKeyDictionary()
        self._scaled = 0
        #: The statistics that averages of torch have copied at their last update.
        self._copied: WeakKeyDictionary[nn.Module, tuple[int, ...]] = WeakKeyDictionary()
        #: Some weights of the models in training when it began.
        self._first: WeakKeyDictionary[nn.Module, torch.Tensor] = WeakKeyDictionary()
        #: Some weights of the models in training before the last step.
        self._before: WeakKeyDictionary[nn.Module, torch.Tensor] = WeakKeyDictionary()
        #: The rounds in which a copy had nearly the weights of a model, by copy.
        self._near: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()

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
        elif moment.kind == "step":
            for model in list(self._starts) if moment.outermost else ():
                if _has_sizes(model):
                    self._before[model] = _sample(model)
        elif moment.outermost and not in_backward():
            self._runs(moment.thing)

    def left(self, moment: Moment) -> None:
        if moment.kind != "average" or moment.failed:
            return
        thing = moment.thing
        # Torch copies buffers, unless it is asked to average them too; an average of all weights
        # needs statistics of its own, and one of the last weights nearly has them.
        equal = getattr(thing, "avg_fn", 0) is None and getattr(thing, "multi_avg_fn", 0) is None
        if equal and not getattr(thing, "use_buffers", True) and int(thing.n_averaged) > 1:
            self._copied[thing] = self._means(thing)

    def _runs(self, model: nn.Module) -> None:
        now = self.training.rounds
        if now < _ROUNDS:
            if torch.is_grad_enabled() and model.training and model not in self._starts:
                self._starts[model] = self._start(model)
                if _has_sizes(model):
                    self._first[model] = _sample(model)
            self._ran[model] = now
            return
        if not torch.is_grad_enabled() and model not in self._starts:
            self._rounds(model)
        if model.training or any(each.training for each in model.modules() if is_batch_norm(each)):
            return  # as `update_bn` runs an average, to collect its statistics
        if self._copied.get(model) and self._means(model) == self._copied[model]:
            self.training.slip(
                "average-lacks-buffers", "update_bn has not run since the last update"
            )
        if not torch.is_grad_enabled() and model not in self._starts:
            self._follows(model, now)
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

    def _follows(self, model: nn.Module, now: int) -> None:
        """Whether a copy differs from the trained model by a small part of the last step only."""
        shapes, held = shapes_of(model), self.training.held()
        if any(id(each) in held for each in model.parameters()):
            return
        for trained, before in list(self._before.items()):
            if shapes_of(trained) != shapes:
                continue
            latest = _sample(trained)
            step, apart = (float((latest - each).abs().max()) for each in (before, _sample(model)))
            if not 0 < apart < _PART * step:
                continue
            if self._near.setdefault(model, now) != now:
                self.training.slip(
                    "average-follows",
                    f"{type(model).__name__} is {apart / step:.2g} of a step away",
                )
            return

    def _rounds(self, model: nn.Module) -> None:
        """Whether a copy has kept the first weights of a model, as a narrow dtype rounds them.

        The copy is in float32, since one in a narrow dtype may have been cast to be used.
        """
        first = next(model.parameters(), None)
        if first is None or first.dtype is not torch.float32:
            return
        shapes = shapes_of(model)
        for trained, start in list(self._first.items()):
            if shapes_of(trained) != shapes:
                continue
            own, latest = _sample(model), _sample(trained)
            for dtype in (torch.bfloat16, torch.float16):
                begin, now = (each.to(dtype).double() for each in (start, latest))
                if not torch.equal(own.to(dtype).double(), own) or torch.equal(now, latest):
                    continue
                moved, kept = now != begin, (now != begin) & (own == begin)
                if int(moved.sum()) >= _ELEMENTS and int(kept.sum()) >= _KEPT * int(moved.sum()):
                    self.training.slip(
                        "average-rounded",
                        f"{int(kept.sum())} of {int(moved.sum())} weights of a copy are the first",
                    )
                    return

    def _means(self, model: nn.Module) -> tuple[int, ...]:
        means = itertools.islice(running_means_of(model), _FEW)
        return tuple(self.training.digest(each, True) for each in means)

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
        return _Start(
            shapes_of(model),
            tuple(self.training.digest(each, True) for each in few),
            self._means(model),
        )


def _has_sizes(model: nn.Module) -> bool:
    """Whether a model has parameters, and a lazy one has made them."""
    parameters = list(model.parameters())
    return bool(parameters) and not any(is_lazy(each) for each in parameters)


def _sample(model: nn.Module) -> torch.Tensor:
    """Some elements of the last parameters of a model."""
    few = [each.detach().flatten()[:_LOOKED] for each in list(model.parameters())[-_FEW:]]
    return torch.cat([each.double().cpu() for each in few])
