"""Watches gradients that are a part of a loss."""

from __future__ import annotations

import torch
from torch import nn

from pytest_trainsafe.judges.learn.instrument.slips.moments import Moment, Training, Watcher

#: The most terms of a loss that are looked at.
_TERMS = 16


class Penalties(Watcher):
    """Sees gradients that are asked for, and what a backward begins with."""

    kinds = ("grad", "module", "backward", "step")

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        #: Whether a gradient was taken without a graph just now, and since the last backward.
        self._waiting = self._taken = False

    def entered(self, moment: Moment) -> None:
        if moment.kind == "backward" and moment.outermost:
            # After a module has run, the gradient may only have changed an input.
            if self._waiting or (self._taken and _adds_constant(moment.thing)):
                self.training.slip(
                    "penalty-without-graph", "its gradient was taken without create_graph=True"
                )
            self._waiting = self._taken = False
        elif moment.kind == "module":
            self._waiting = False
        elif moment.kind == "step":
            self._waiting = self._taken = False

    def left(self, moment: Moment) -> None:
        if moment.kind != "grad" or moment.failed or not torch.is_grad_enabled():
            return
        inputs = moment.argument(1, "inputs")
        each = inputs if isinstance(inputs, list | tuple) else (inputs,)
        outer = moment.argument(4, "create_graph", False)
        of_data = not any(isinstance(one, nn.Parameter) for one in each)
        if not outer and not moment.inside("module", "backward", "step"):
            self._waiting, self._taken = of_data, True


def _adds_constant(total: object) -> bool:
    """Whether a tensor without a gradient is added to a loss, or a number is."""
    node = total.grad_fn if isinstance(total, torch.Tensor) else None
    for _ in range(_TERMS):
        if type(node).__name__ == "AddBackward0":
            parts = [part for part, _ in node.next_functions]  # type: ignore[union-attr]
            if None in parts:
                return True
            node = parts[0]
        elif type(node).__name__ in ("MulBackward0", "DivBackward0"):
            node = node.next_functions[0][0]  # type: ignore[union-attr]
        else:
            break
    return False
