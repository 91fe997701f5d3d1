"""Update: reduces and clips a step's gradients, and updates the parameters.

Every training loop has one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import AdamW

from pytest_trainsafe.reference_models.parallel.axes import Axes
from pytest_trainsafe.reference_models.parallel.data.gradients import (
    clip_gradients,
    gradient_norm,
    reduce_gradients,
)
from pytest_trainsafe.reference_models.parallel.data.reduction import BucketedReduction
from pytest_trainsafe.reference_models.parallel.data.zero import ShardedAdamW
from pytest_trainsafe.reference_models.training import main_gradients
from pytest_trainsafe.reference_models.training.optimizer import adamw

if TYPE_CHECKING:
    from pytest_trainsafe.record.context import Context


class Update:
    """The optimizer of `model`, with the reduction and clipping that the axes require.

    Must be created after the parameters have their initial values.  `backwards` is the number of
    backwards that reach each parameter in a step: one for each micro-batch of this rank.
    """

    def __init__(self, model: nn.Module, axes: Axes, learning_rate: float, backwards: int) -> None:
        self.axes = axes
        self.parameters = [each for each in model.parameters() if each.requires_grad]
        self.buckets: BucketedReduction | None = None
        if axes.bucketed:
            self.buckets = BucketedReduction(self.parameters, axes, backwards)
        if self.buckets is not None and axes.zero:
            shares = self.buckets.buckets
            self.optimizer: AdamW = ShardedAdamW(model, shares, axes, learning_rate)
        else:
            self.optimizer = adamw(self.parameters, learning_rate)

    def annotated(self, annotations: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns `annotations` with the declaration that gradients are means over dp and cp.

        Without buckets, gradients are sums, and `annotations` are returned unchanged.
        """
        if self.buckets is None:
            return annotations
        return {**annotations, "gradients": {"mean": ["dp", "cp"]}}

    def accumulate(self) -> None:
        """Adds the gradients of a backward to the main gradients; called after each backward."""
        main_gradients.accumulate(self.parameters)

    def step(self, ctx: Context, clip: float) -> None:
        """Reduces and clips the gradients and updates the parameters, after the last backward.

        `clip` is the maximum gradient norm; 0 disables clipping.
        """
        reduce_gradients(self.parameters, self.axes, self.buckets)
        norm = gradient_norm(self.parameters, self.axes)
        if clip:
            ctx.before_clip(norm, clip)
            clip_gradients(self.parameters, norm, clip)
        self.optimizer.step()
        # Record the norm after the gradients, so that an error in the gradients is reported first.
        ctx.grad_norm(norm)
        main_gradients.clear(self.parameters)
        if isinstance(self.optimizer, ShardedAdamW):
            self.optimizer.settle()  # for the recorder, which reads the parameters after each step
