"""From the gradients of a step's micro-batches to new parameters.  Every training loop has one."""

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
    """The optimizer of `model`, and what comes before it, as the axes say.

    Made when the parameters have their values.  `backwards` are those that reach each parameter
    in a step, one a micro-batch of this rank.
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
        """Annotations of activations, and what is to be said of gradients."""
        if self.buckets is None:
            return annotations
        return {**annotations, "gradients": {"mean": ["dp", "cp"]}}

    def accumulate(self) -> None:
        """After each backward: move what it left to the main gradients."""
        main_gradients.accumulate(self.parameters)

    def step(self, ctx: Context, clip: float) -> None:
        """After the last: reduce, clip to the norm `clip` (0: not at all), and update."""
        reduce_gradients(self.parameters, self.axes, self.buckets)
        norm = gradient_norm(self.parameters, self.axes)
        if clip:
            ctx.before_clip(norm, clip)
            clip_gradients(self.parameters, norm, clip)
        self.optimizer.step()
        # After the gradients that it is made of, so that what is wrong with them shows first.
        ctx.grad_norm(norm)
        main_gradients.clear(self.parameters)
        if isinstance(self.optimizer, ShardedAdamW):
            self.optimizer.settle()  # for the recorder, which reads the parameters after each step
