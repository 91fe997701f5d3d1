"""The loss scale of DeepSpeed's engine, as it is found in each backward.

Half precision may be trained with a loss that is multiplied by a scale, so that all gradients of
the backward are.  Which releases, stages and dtypes do so differs, and an optimizer may name a
scale that no loss was multiplied by, so the gradient that reaches the loss is looked at.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch


class LossScale:
    """Finds by what `engine.backward` multiplies a loss, and takes it out of gradients."""

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
        """A gradient of the backward that runs, without the scale; in float32 if there is one."""
        return grad if self.value == 1.0 else grad.float() / self.value

    def _stated(self) -> float:
        """The scale that the optimizer names, 1 where it names none."""
        return float(getattr(self.engine.optimizer, "loss_scale", None) or 1.0)

    def _found(self, scale: float, grad: torch.Tensor) -> None:
        """Take the scale as acting if it is in the gradient of the loss.

        That gradient may have been divided by the number of accumulation steps already.
        """
        steps = self.engine.gradient_accumulation_steps()
        entered = float(grad.detach().abs().max())
        acts = any(math.isclose(entered, each, rel_tol=1e-3) for each in (scale, scale / steps))
        self.value = scale if acts else 1.0
