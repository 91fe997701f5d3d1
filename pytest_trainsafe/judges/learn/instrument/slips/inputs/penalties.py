"""Watches gradients that are a part of a loss."""

from __future__ import annotations

import torch
from torch import nn

from pytest_trainsafe.judges.learn.instrument.slips.moments import Moment, Training, Watcher


class Penalties(Watcher):
    """Sees gradients that are asked for, and whether the next thing is a backward."""

    kinds = ("grad", "module", "backward", "step")

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        self._waiting = False

    def entered(self, moment: Moment) -> None:
        if moment.kind == "backward" and moment.outermost and self._waiting:
            self._waiting = False
            self.training.slip(
                "penalty-without-graph", "its gradient was taken without create_graph=True"
            )
        elif moment.kind in ("module", "step"):
            self._waiting = False  # as where the gradient only changes an input

    def left(self, moment: Moment) -> None:
        if moment.kind != "grad" or moment.failed or not torch.is_grad_enabled():
            return
        inputs = moment.argument(1, "inputs")
        each = inputs if isinstance(inputs, list | tuple) else (inputs,)
        outer = moment.argument(4, "create_graph", False)
        of_data = not any(isinstance(one, nn.Parameter) for one in each)
        self._waiting = of_data and not outer and not moment.inside("module", "backward", "step")
