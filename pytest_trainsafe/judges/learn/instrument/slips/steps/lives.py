"""Watches how long optimizers live, and whether they step."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.optim import Optimizer

from pytest_trainsafe.compat.tensors import version_of
from pytest_trainsafe.judges.learn.instrument.slips.moments import (
    Moment,
    Training,
    Watcher,
    parameters_of,
)

#: An optimizer that is made so many times has been made for each step, or each epoch.
_TIMES = 3
#: And so many, if only the examples show the epochs: an inner problem may be solved a few times.
_MORE = 4
#: Two passes over the data have at least this share of their examples in common.
_ALL = 0.8
#: An optimizer that has not stepped is judged after so many steps of others, and once.
_ROUNDS, _MANY = 10, 1 << 30


@dataclass(slots=True)
class _Line:
    """Optimizers of the same parameters, one after the other.

    `first` is the first parameter.  `count` is how many of them stepped, each of which had a state
    and lived for one step, for one iteration of a loader, or for the same examples, of which
    `examples` has those of the last one, and `earlier` those of the one before.
    """

    first: weakref.ref[torch.Tensor]
    last: weakref.ref[Optimizer] | None = None
    steps: int = 0
    began: tuple[int, int] = (0, 0)
    ended: tuple[int, int] = (0, 0)
    examples: set[int] = field(default_factory=set)
    earlier: set[int] = field(default_factory=set)
    count: int = 0
    said: bool = False
    #: The version of the first parameter at the last step, and by how much a step adds to it.
    version: int = 0
    added: int = 0

    @property
    def goes_over(self) -> bool:
        """Whether the last one was trained with the examples of the one before it."""
        if not self.examples or not self.earlier:
            return self.count == 1 and bool(self.examples)
        common = len(self.examples & self.earlier)
        return common >= _ALL * max(len(self.examples), len(self.earlier))


@dataclass(slots=True)
class _Seen:
    """The loaders that were iterated, and how often each was."""

    loader: Any = None
    counts: WeakKeyDictionary[Any, int] = field(default_factory=WeakKeyDictionary)


class Lives(Watcher):
    """Sees steps, iterations of loaders, and states that are loaded."""

    kinds = ("step", "optimizer_load", "module_load", "iter")

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        self._lines: dict[tuple[Any, ...], _Line] = {}
        self._stepped: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._loaded: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        #: The round in which each optimizer was seen first.
        self._made: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()
        #: Those that wait, and what is wrong if they never step: one may begin later.
        self._waiting: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()
        self._texts: dict[int, str] = {}
        self._seen = _Seen()

    def entered(self, moment: Moment) -> None:
        if moment.kind == "optimizer_load":
            self._loaded.add(moment.thing)
        elif moment.kind == "module_load":
            self._lines.clear()  # as in rounds of federated training
        elif moment.kind == "iter":
            self._seen.loader = weakref.ref(moment.thing)
            counts = self._seen.counts
            counts[moment.thing] = counts.get(moment.thing, 0) + 1
        elif moment.kind == "step" and moment.outermost:
            self._steps(moment.thing)
            self._idle()

    def _steps(self, optimizer: Optimizer) -> None:
        parameters = list(parameters_of(optimizer))
        if not parameters:
            return
        if optimizer in self._waiting:
            self._texts.pop(self._waiting.pop(optimizer))
        key = (type(optimizer), *(id(each) for each in parameters))
        line = self._lines.get(key)
        if line is None or line.first() is not parameters[0]:
            line = self._lines[key] = _Line(weakref.ref(parameters[0]))
        now = self._iteration()
        if optimizer not in self._stepped:
            self._stepped.add(optimizer)
            before = line.last() if line.last is not None else None
            follows = line.count and before is not optimizer and optimizer not in self._loaded
            # It lived for one step, or as long as the same loader was iterated once.
            lived = line.began[0] and line.began == line.ended
            next_pass = lived and now == (line.ended[0], line.ended[1] + 1)
            # Weights that are pruned or averaged in between are those of a next phase.
            same = version_of(parameters[0]) == line.version + line.added
            known = line.steps == 1 or (next_pass and same)
            again = same and line.goes_over and line.examples.issuperset(self.training.examples)
            if follows and not optimizer.state and (known or again):
                line.count += 1
            else:
                line.count = 1
            line.earlier, line.examples = line.examples, set()
            enough = line.count >= (_TIMES if known else _MORE)
            if enough and not line.said and _has_momentum(optimizer):
                line.said = True
                self.training.slip(
                    "optimizer-renewed",
                    f"{line.count} {type(optimizer).__name__} have stepped the same parameters",
                )
            line.last, line.steps, line.began = weakref.ref(optimizer), 0, now
        line.examples.update(self.training.examples)
        if line.last is not None and line.last() is optimizer:
            version = version_of(parameters[0])
            line.added = version - line.version if line.steps else line.added
            line.version = version
            line.steps += 1
            line.ended = now

    def _iteration(self) -> tuple[int, int]:
        """The loader that was iterated last, and how often it was."""
        loader = self._seen.loader() if self._seen.loader is not None else None
        return (0, 0) if loader is None else (id(loader), self._seen.counts.get(loader, 0))

    def _idle(self) -> None:
        """Whether an optimizer waits for its first step, and has gradients."""
        now = self.training.rounds
        held = {id(each) for one in self._stepped for each in parameters_of(one)}
        for optimizer in list(self.training.optimizers):
            if optimizer in self._stepped or now - self._made.setdefault(optimizer, now) < _ROUNDS:
                continue
            waiting = [
                each
                for each in parameters_of(optimizer)
                if each.requires_grad and each.grad is not None and id(each) not in held
            ]
            if waiting:
                self._made[optimizer] = now + _MANY
                name = type(optimizer).__name__
                number = max(self._texts, default=-1) + 1
                self._waiting[optimizer] = number
                self._texts[number] = (
                    f"{name} has not, and {len(waiting)} parameters have gradients"
                )

    def ended(self) -> None:
        for text in self._texts.values():
            self.training.slip("never-steps", text)


def _has_momentum(optimizer: Optimizer) -> bool:
    group = optimizer.param_groups[0]
    return "betas" in group or bool(group.get("momentum"))
