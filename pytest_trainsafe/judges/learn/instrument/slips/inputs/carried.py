"""Watches what goes from one batch to the next: data that a model writes to, recurrent states."""

from __future__ import annotations

import weakref
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.utils.data import DataLoader

from pytest_trainsafe.compat.tensors import base_of, version_of
from pytest_trainsafe.judges.learn.instrument.slips.data import shuffles, tensors_in
from pytest_trainsafe.judges.learn.instrument.slips.moments import Moment, Training, Watcher
from pytest_trainsafe.record.clock import in_backward

#: The most parts of the stored data that are remembered.
_MANY = 256


class Carried(Watcher):
    """Sees iterations of loaders, their batches, and modules that run."""

    kinds = ("iter", "next", "module")

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        #: The parts of stored data that a model has written to: where each is, and of what.
        self._written: dict[tuple[int, int], weakref.ref[torch.Tensor]] = {}
        self._shuffled: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()
        #: The number of batches, and the one that a recurrent module has made its last state in,
        #: with a hash of that.
        self._batches = 0
        self._states: WeakKeyDictionary[nn.Module, tuple[int, int]] = WeakKeyDictionary()
        self._random = False

    def entered(self, moment: Moment) -> None:
        if moment.kind != "module" or in_backward() or not torch.is_grad_enabled():
            return
        if isinstance(moment.thing, nn.RNNBase) and moment.thing.training and self._random:
            self._carries(moment)
        if moment.outermost:
            given = tensors_in([*moment.args, *moment.kwargs.values()])[:1]
            for part in given:
                base = base_of(part)
                if base is not None and base.numel() > part.numel() and not part.requires_grad:
                    moment.given["part"] = part, version_of(part)
                    before = self._written.get(_place(part))
                    if before is not None and before() is base:
                        moment.given["content"] = self.training.digest(part, True)

    def left(self, moment: Moment) -> None:
        if moment.failed:
            return
        if moment.kind == "iter":
            loader = moment.thing
            plain = isinstance(loader, DataLoader) and shuffles(loader.sampler)
            self._shuffled[moment.result] = plain
        elif moment.kind == "next":
            self._batches += 1
            self._random = self._shuffled.get(moment.thing, False)
        elif "part" in moment.given:
            part, version = moment.given["part"]
            self._writes(part, version, moment.given.get("content"))
        if moment.kind == "module" and isinstance(moment.thing, nn.RNNBase) and not in_backward():
            state = _first(moment.result[1])
            if state is not None and self._random:
                self._states[moment.thing] = self._batches, self.training.digest(state, True)

    def _carries(self, moment: Moment) -> None:
        """Whether a recurrent module begins with the last state of another batch."""
        state = _first(moment.argument(1, "hx"))
        batch, digest = self._states.get(moment.thing, (self._batches, 0))
        if state is None or batch == self._batches or not bool(state.detach().any()):
            return
        if self.training.digest(state, True) == digest:
            name = type(moment.thing).__name__
            self.training.slip("state-carried", f"{name} begins with that of the batch before")

    def _writes(self, part: torch.Tensor, version: int, content: int | None) -> None:
        """Whether a model has changed a part of the data that it had changed before."""
        if version_of(part) == version:
            return
        base = base_of(part)
        if content is not None and content != self.training.digest(part, True):
            self.training.slip("input-overwritten", f"{list(part.shape)} of the data change again")
        elif base is not None and len(self._written) < _MANY:
            self._written[_place(part)] = weakref.ref(base)


def _place(part: torch.Tensor) -> tuple[int, int]:
    return part.data_ptr(), part.numel()


def _first(state: object) -> torch.Tensor | None:
    """The state of a recurrent module, of which an LSTM has two."""
    found = state[0] if isinstance(state, tuple) and state else state
    return found if isinstance(found, torch.Tensor) else None
