"""Decides between two steps whether the program evaluates its model, by the modes of its parts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn


class Evaluating:
    """Compares the modes of a model's `parts` with those in which they train.

    A part can also train in evaluation mode, with frozen batch norm, or never be trained, like the
    teacher of a distillation. Its evaluation mode is then no sign of an evaluation.
    """

    def __init__(self, parts: Sequence[nn.Module]) -> None:
        self.parts = parts
        self._trained: list[nn.Module] | None = None

    def in_step(self) -> None:
        """Notes which parts train in training mode. Called in a step."""
        self._trained = [part for part in self.parts if part.training and _is_trainable(part)]

    def now(self) -> bool:
        """Whether a part that is in training mode in the steps is now in evaluation mode.

        Before the first step it is not known in which mode the parts train. Until then, any part
        with parameters to train counts, but only while gradients are disabled.
        """
        if self._trained is not None:
            return any(not part.training for part in self._trained)
        if torch.is_grad_enabled():
            return False
        return any(not part.training and _is_trainable(part) for part in self.parts)


def _is_trainable(part: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in part.parameters())
