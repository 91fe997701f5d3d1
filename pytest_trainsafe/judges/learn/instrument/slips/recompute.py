"""Watches whether a recomputation draws the random numbers of the forward that it repeats."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
import xxhash
from torch import nn

from pytest_trainsafe.compat.modules import is_batch_norm
from pytest_trainsafe.judges.learn.instrument.slips.moments import Moment, Training, Watcher
from pytest_trainsafe.record.clock import in_backward

#: The most forwards of a module that wait for their recomputation.
_MANY = 256


class Recompute(Watcher):
    """Sees modules that run in activation checkpointing and in a backward."""

    kinds = ("module", "checkpoint")

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        #: The states of the generators before each forward of a module that drew numbers.
        self._forwards: WeakKeyDictionary[nn.Module, list[int]] = WeakKeyDictionary()

    def entered(self, moment: Moment) -> None:
        if not (in_backward() or moment.inside("checkpoint")):
            return
        if moment.kind == "module" and in_backward():
            self._statistics(moment.thing)
        if moment.kind != "module" or any(kind == "module" for kind, _ in self._within(moment)):
            return
        if in_backward():
            waiting = self._forwards.get(moment.thing)
            if waiting:
                state = _state()
                if state not in waiting:
                    self.training.slip(
                        "recomputed-otherwise",
                        f"the forward of {type(moment.thing).__name__} draws other numbers",
                    )
                    waiting.clear()
                else:
                    waiting.remove(state)
        else:
            moment.given["state"] = _state()

    def _statistics(self, module: nn.Module) -> None:
        """Whether a batch norm learns in a recomputation what it has learned in the forward."""
        learns = is_batch_norm(module) and module.training and module.track_running_stats
        if learns and module.momentum != 0:
            self.training.slip("statistics-twice", f"a {type(module).__name__} runs once more")

    def left(self, moment: Moment) -> None:
        before = moment.given.get("state")
        if before is not None and not moment.failed and _state() != before:
            waiting = self._forwards.setdefault(moment.thing, [])
            if len(waiting) < _MANY:
                waiting.append(before)

    def _within(self, moment: Moment) -> list[tuple[str, object]]:
        """The calls around this one, from the innermost checkpoint on."""
        around = list(moment.around)
        kinds = [kind for kind, _ in around]
        if in_backward() or "checkpoint" not in kinds:
            # A backward happens outside of the model's forward.
            return around if in_backward() else []
        return around[len(kinds) - kinds[::-1].index("checkpoint") :]


def _state() -> int:
    """A hash of the states of the default generators."""
    hashed = xxhash.xxh3_64(torch.get_rng_state().numpy().tobytes())
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        hashed.update(torch.cuda.get_rng_state().numpy().tobytes())
    return hashed.intdigest()
