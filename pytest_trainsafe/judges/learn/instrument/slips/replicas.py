"""Watches models that DistributedDataParallel wraps."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import nn

from pytest_trainsafe.judges.learn.instrument.slips.moments import Moment, Training, Watcher
from pytest_trainsafe.record.clock import in_backward


class Replicas(Watcher):
    """Sees wrappers that are made, models that run, and steps."""

    kinds = ("replicated", "module", "step")

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        #: The wrapper of each wrapped model.
        self._wrappers: WeakKeyDictionary[nn.Module, ref[Any]] = WeakKeyDictionary()
        #: Whether the last forward of each wrapper since the last step was to synchronise.
        self._last: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()

    def entered(self, moment: Moment) -> None:
        if moment.kind == "step":
            self._step()
        elif moment.kind == "module" and torch.is_grad_enabled() and not in_backward():
            model = moment.thing
            if isinstance(model, nn.parallel.DistributedDataParallel):
                self._wrappers[model.module] = ref(model)
                self._last[model] = bool(model.require_backward_grad_sync)
            elif moment.outermost and model.training and self._is_wrapped(model):
                name = type(model).__name__
                self.training.slip("wrapper-bypassed", f"the forward of {name} goes past it")

    def left(self, moment: Moment) -> None:
        if moment.kind == "replicated" and not moment.failed:
            self._wrappers[moment.thing.module] = ref(moment.thing)

    def _is_wrapped(self, model: nn.Module) -> bool:
        wrapper = self._wrappers.get(model)
        return wrapper is not None and wrapper() is not None

    def _step(self) -> None:
        if any(not last for last in self._last.values()):
            self.training.slip("not-synchronised", "the last forward before it ran in no_sync()")
        self._last.clear()
