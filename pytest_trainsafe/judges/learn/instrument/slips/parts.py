"""Watches parts of a model that run without gradients, or are made while it runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import nn

from pytest_trainsafe.compat.modules import children_of, own_parameters
from pytest_trainsafe.judges.learn.instrument.slips.data import tensors_in
from pytest_trainsafe.judges.learn.instrument.slips.moments import Moment, Training, Watcher
from pytest_trainsafe.record.clock import in_backward

#: All of a model is looked at in so many rounds; what ran without gradients by then is followed.
_ROUNDS = 3


@dataclass(slots=True)
class _Quiet:
    """A part of a model that has run without gradients only, so far."""

    text: str
    graded: bool = False


class Parts(Watcher):
    """Sees modules, activation checkpointing and steps."""

    kinds = ("module", "checkpoint", "step")

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        #: Modules with trained parameters of their own that ran in a forward with gradients: with
        #: them, and without.
        self._graded: WeakSet[nn.Module] = WeakSet()
        self._quiet: WeakSet[nn.Module] = WeakSet()
        #: Those that are followed until the end: some models train a part from a later step on.
        self._follows: WeakKeyDictionary[nn.Module, _Quiet] = WeakKeyDictionary()
        self._last: _Quiet | None = None
        #: The modules that lists of the model that runs have twice, and what each of them has got.
        self._twice: dict[int, set[int]] = {}

    def entered(self, moment: Moment) -> None:
        if self.training.rounds >= _ROUNDS or in_backward():
            late = self._follows.get(moment.thing) if moment.kind == "module" else None
            if late is not None and torch.is_grad_enabled() and not in_backward():
                late.graded = True
            return
        if moment.kind == "checkpoint":
            moment.given["graded"], moment.given["trained"] = torch.is_grad_enabled(), False
        elif moment.kind == "module":
            if moment.outermost:
                graded = torch.is_grad_enabled() and moment.thing.training
                moment.given["graded"] = graded
                moment.given["before"] = _names(moment.thing) if graded else None
                self._twice = {each: set() for each in _repeated(moment.thing)} if graded else {}
            elif id(moment.thing) in self._twice:
                self._repeats(moment)
            self._runs(moment)
        elif moment.outermost and self.training.rounds == _ROUNDS - 1:
            self._judge()

    def left(self, moment: Moment) -> None:
        if moment.failed or in_backward():
            return
        if moment.kind == "checkpoint" and moment.given.get("trained"):
            results = tensors_in(moment.result)
            floats = [each for each in results if each.is_floating_point()]
            if floats and not any(each.requires_grad for each in floats):
                self.training.slip(
                    "checkpoint-without-gradient", "no input of the checkpoint requires gradients"
                )
        elif moment.kind == "module" and moment.given.get("before") is not None:
            self._made(moment.thing, moment.given["before"])

    def _runs(self, moment: Moment) -> None:
        module = moment.thing
        if not any(each is not None and each.requires_grad for each in _own(module)):
            return
        outer, outermost = moment, moment
        checkpoint = None
        while outer.outer is not None:
            outer = outer.outer
            if outer.kind == "checkpoint" and checkpoint is None:
                checkpoint = outer
            if outer.kind == "module":
                outermost = outer
        if checkpoint is not None:
            checkpoint.given["trained"] = checkpoint.given.get("graded", False)
        elif outermost.given.get("graded"):
            (self._graded if torch.is_grad_enabled() else self._quiet).add(module)

    def _repeats(self, moment: Moment) -> None:
        """Whether a module gets what it has got in the same forward, as another one would."""
        seen, given = self._twice[id(moment.thing)], moment.argument(0, "input")
        if id(given) in seen and any(each.requires_grad for each in moment.thing.parameters()):
            name = type(moment.thing).__name__
            self.training.slip("layer-repeated", f"{name} of a list gets the same input again")
        seen.add(id(given))

    def _judge(self) -> None:
        held = self.training.held()
        for name, model in self.training.models():
            for path, module in model.named_modules():
                if module not in self._quiet or module in self._graded:
                    continue
                own = [each for each in _own(module) if each is not None and each.requires_grad]
                if own and all(id(each) in held and each.grad is None for each in own):
                    text = f"{path} of {name} runs without gradients only"
                    self._follows[module] = self._last = _Quiet(text)
                    return

    def ended(self) -> None:
        if self._last is not None and not self._last.graded:
            self.training.slip("part-without-gradient", self._last.text)

    def _made(self, model: nn.Module, before: set[str]) -> None:
        """Whether the forward has made parameters, and optimizers that are there lack them.

        A wrapper may replace a parameter while the model runs, under the same name.
        """
        held = self.training.held()
        own = dict(model.named_parameters())
        made = [
            path
            for path, each in own.items()
            if path not in before and each.requires_grad and id(each) not in held
        ]
        if made and any(id(each) in held for each in own.values()):
            self.training.slip(
                "made-after-optimizer", f"{made[0]} of {type(model).__name__} is made by a forward"
            )


def _own(module: nn.Module) -> Iterable[nn.Parameter | None]:
    return own_parameters(module).values()


def _repeated(model: nn.Module) -> set[int]:
    """The ids of the modules that are in one list of a model several times."""
    return {
        id(each)
        for module in model.modules()
        if isinstance(module, nn.ModuleList | nn.ModuleDict)
        for each, count in Counter(children_of(module).values()).items()
        if count > 1 and each is not None
    }


def _names(model: nn.Module) -> set[str]:
    return {name for name, _ in model.named_parameters()}
