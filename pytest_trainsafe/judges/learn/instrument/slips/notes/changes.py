"""Notes what a loop does to the gradients of each parameter between the backward and the step."""

from __future__ import annotations

import re
from collections import defaultdict
from weakref import WeakKeyDictionary

import torch
from torch.optim import Optimizer

from pytest_trainsafe.compat.tensors import local_part, version_of
from pytest_trainsafe.judges.learn.events.slips import FACTOR, NOTED, noted
from pytest_trainsafe.judges.learn.instrument.slips.moments import (
    Moment,
    Training,
    Watcher,
    parameters_of,
)
from pytest_trainsafe.judges.learn.instrument.slips.notes import ROUNDS

#: So many parameters are looked at, and so many backwards of a round.
_MANY, _OFTEN = 256, 64
#: The index of a layer in a name: layers that are trained alike share a note.
_INDEX = re.compile(r"(?<=\.)\d+(?=\.|$)")


class Changes(Watcher):
    """Sees backwards, scalers and steps."""

    kinds = ("backward", "unscale", "scaler_step", "step")

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        #: The version and the norm of each gradient when a backward was last over, by parameter.
        self._before: WeakKeyDictionary[Optimizer, dict[int, tuple[int, float]]]
        self._before = WeakKeyDictionary()
        self._scales = False
        self._read = 0

    def entered(self, moment: Moment) -> None:
        if moment.kind in ("unscale", "scaler_step"):
            self._scales = True
        elif moment.kind == "step" and moment.outermost:
            before = self._before.pop(moment.thing, None)
            self._read = 0
            if before is not None and moment.argument(0, "closure") is None:
                self._note(moment.thing, before)

    def left(self, moment: Moment) -> None:
        if moment.kind != "backward" or not moment.outermost or moment.failed:
            return
        if self.training.note is None or self.training.young >= ROUNDS or self._read >= _OFTEN:
            return
        self._read += 1
        for each in list(self.training.optimizers):
            self._before[each] = _states(each)

    def _note(self, optimizer: Optimizer, before: dict[int, tuple[int, float]]) -> None:
        assert self.training.note is not None
        names = {id(each): f"params {at}" for at, each in enumerate(parameters_of(optimizer))}
        names |= {
            id(parameter): _INDEX.sub("*", f"{name}.{path}")
            for name, model in self.training.models()
            for path, parameter in model.named_parameters()
        }
        now = _states(optimizer)
        found: dict[str, set[str]] = defaultdict(set)
        for key, (version, norm) in before.items():
            if key in now:
                later, after = now[key]
                changed = later != version or after != norm
                factor = f"{after / norm:.3g}" if norm and after and not self._scales else "unknown"
                found[names[key]].add(factor if changed else "none")
        for name, factors in found.items():
            if len(factors) == 1:
                self.training.note(NOTED, noted(f"{FACTOR} of {name}", *factors))


def _states(optimizer: Optimizer) -> dict[int, tuple[int, float]]:
    found: dict[int, tuple[int, float]] = {}
    for each in list(parameters_of(optimizer))[:_MANY]:
        part = None if each.grad is None else local_part(each.grad, each.grad)
        if isinstance(part, torch.Tensor) and not part.is_sparse and part.numel():
            found[id(each)] = version_of(part), float(part.detach().float().norm())
    return found
