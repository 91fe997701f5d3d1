"""Watches the losses that backwards begin with."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import nn

from pytest_trainsafe.judges.learn.events.slips import GRAPH
from pytest_trainsafe.judges.learn.instrument.slips.moments import (
    Moment,
    Training,
    Watcher,
    parameters_of,
)
from pytest_trainsafe.judges.learn.instrument.slips.steps.graph import described, within

#: Losses are followed in so many rounds, and at most so many of them.
_ROUNDS, _MANY = 3, 64


class Roots(Watcher):
    """Sees losses, backwards, and what uses or clears the gradients."""

    kinds = ("loss", "backward", "grad", "step", "zero_grad")

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        self._roots: list[weakref.ref[torch.Tensor]] = []
        #: The names of the losses since the last step that no backward has used, by their nodes.
        self._waiting: dict[Any, str] = {}
        #: The rounds in which the graph of a loss was described.
        self._drawn: set[int] = set()

    def entered(self, moment: Moment) -> None:
        if moment.kind == "step" and moment.outermost:
            self._unused()
        if moment.kind in ("step", "zero_grad"):
            self._roots.clear()
        if moment.kind == "grad":
            self._uses(moment.argument(0, "outputs"))
        if moment.kind != "backward" or not moment.outermost:
            return
        total = moment.thing
        self._uses(total)
        if not isinstance(total, torch.Tensor) or total.numel() != 1:
            return
        if self.training.rounds not in self._drawn and self.training.rounds < _ROUNDS:
            self._draw(total)
        if moment.argument(0, "gradient") is not None or moment.argument(3, "inputs") is not None:
            return
        if total.grad_fn is None:
            alone = total.requires_grad and not isinstance(total, nn.Parameter)
            if alone and id(total) not in self.training.held():
                self.training.slip(
                    "loss-without-graph", "the loss is a leaf, with no graph behind it"
                )
            return
        again = any(each() is total for each in self._roots)
        if again and self._has_gradients():
            self.training.slip("backward-twice", "the same loss has added to gradients before")
        elif not again:
            self._roots = [each for each in self._roots if each() is not None]
            self._roots.append(weakref.ref(total))

    def _uses(self, total: object) -> None:
        """Note that all losses behind a tensor are used; all of them, if that is not known."""
        known = isinstance(total, torch.Tensor) and total.numel() == 1
        used = within(total, self._waiting) if known else None  # type: ignore[arg-type]
        self._waiting = {} if used is None else self._waiting
        for node in used or ():
            del self._waiting[node]

    def left(self, moment: Moment) -> None:
        if moment.kind != "loss" or moment.failed or not torch.is_grad_enabled():
            return
        result = moment.result
        node = result.grad_fn if isinstance(result, torch.Tensor) else None
        if node is not None and self.training.rounds < _ROUNDS and len(self._waiting) < _MANY:
            self._waiting[node] = moment.api.rpartition(".")[2]

    def _draw(self, total: torch.Tensor) -> None:
        """Describe the first graph of a round, if it is asked for."""
        text = described(total) if self.training.graph is not None and total.grad_fn else ""
        if text and self.training.graph is not None:
            self._drawn.add(self.training.rounds)
            self.training.graph(GRAPH, text)

    def _unused(self) -> None:
        waiting, self._waiting = self._waiting, {}
        if waiting and len(self.training.optimizers) == 1:
            names = ", ".join(dict.fromkeys(waiting.values()))
            self.training.slip("loss-unused", f"no backward has used {names}")

    def _has_gradients(self) -> bool:
        return any(
            each.grad is not None
            for optimizer in self.training.optimizers
            for each in parameters_of(optimizer)
        )
