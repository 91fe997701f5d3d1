"""Finds the loss scale that DeepSpeed's engine applies in each backward.

Half-precision training may multiply the loss, and so all gradients of the backward, by a scale.
Whether DeepSpeed does so depends on its release, the ZeRO stage and the dtype, and an optimizer
may report a scale that is not applied to the loss.  So the scale is checked against the gradient
of the loss itself.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch


class LossScale:
    """Finds the factor by which `engine.backward` scales a loss, and removes it from gradients."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.value = 1.0
        original = engine.backward

        @functools.wraps(original)
        def backward(loss: Any, *args: Any, **kwargs: Any) -> Any:
            self.value = 1.0
            scale = self._stated()
            if scale == 1.0 or not isinstance(loss, torch.Tensor) or not loss.requires_grad:
                return original(loss, *args, **kwargs)
            handle: Any = loss.register_hook(functools.partial(self._found, scale))  # type: ignore[no-untyped-call]
            try:
                return original(loss, *args, **kwargs)
            finally:
                handle.remove()

        engine.backward = backward

    def undone(self, grad: torch.Tensor) -> torch.Tensor:
        """A gradient of the current backward, divided by the scale, in float32.

        Returns the gradient unchanged if the scale is 1.
        """
        return grad if self.value == 1.0 else grad.float() / self.value

    def _stated(self) -> float:
        """The scale that the optimizer reports; 1 if it reports none."""
        return float(getattr(self.engine.optimizer, "loss_scale", None) or 1.0)

    def _found(self, scale: float, grad: torch.Tensor) -> None:
        """Stores `scale`, the reported scale, if it is in effect, and 1 otherwise.

        `grad` is the gradient of the loss.  The scale is in effect if `grad` equals `scale`, or
        `scale` divided by the number of accumulation steps.
        """
        steps = self.engine.gradient_accumulation_steps()
        entered = float(grad.detach().abs().max())
        acts = any(math.isclose(entered, each, rel_tol=1e-3) for each in (scale, scale / steps))
        self.value = scale if acts else 1.0
