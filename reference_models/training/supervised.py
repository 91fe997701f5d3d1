"""The training loop of the small models, which supports only data parallelism and ZeRO.

Called by `cnn.train` and `lstm.train`, in the ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor, nn

from pytest_trainsafe.reference_models.parallel.axes import Axes
from pytest_trainsafe.reference_models.parallel.data.update import Update
from pytest_trainsafe.reference_models.parallel.techniques import compiled
from pytest_trainsafe.reference_models.parallel.tensor.loss import loss_to_differentiate
from pytest_trainsafe.reference_models.plain.update import PlainUpdate, plain_loss

if TYPE_CHECKING:
    from pytest_trainsafe.record.context import Context


@dataclass(frozen=True, slots=True)
class Plan:
    """How a small model is trained.

    A step has `microbatches` micro-batches over all ranks, each with `targets` losses.  `clip` is
    the maximum gradient norm; 0 turns clipping off.
    """

    targets: int
    microbatches: int
    steps: int
    learning_rate: float
    clip: float = 0.0


def train_supervised(
    ctx: Context,
    model: nn.Module,
    axes: Axes,
    plan: Plan,
    batch: Callable[[int], tuple[Tensor, ...]],
) -> None:
    """Train `model`, where `model(*batch(number))` returns the loss of every target.

    Micro-batches are numbered through the whole training.  A dp rank computes whole micro-batches,
    so that a computation over one micro-batch (the statistics of a batch, the states of a sequence)
    is the same at every Point.  On a single device, the loss scale and the update come from
    separate code (`plain/update.py`).
    """
    model = model.to(device=ctx.device, dtype=ctx.dtype)
    ctx.initialize(model)
    numbers = ctx.microbatches(plan.microbatches)
    update: Update | PlainUpdate
    if axes.alone:
        update = PlainUpdate(model, plan.learning_rate)
    else:
        update = Update(model, axes, plan.learning_rate, backwards=len(numbers))
    compiled(model, axes)
    ctx.watch(model, update.optimizer, annotations=update.annotated({}))
    for step in ctx.steps(plan.steps):
        with ctx.step():
            for index in numbers:
                inputs = [each.to(ctx.device) for each in batch(step * plan.microbatches + index)]
                with ctx.microbatch(index):
                    losses = model(*inputs)
                    ctx.loss(losses.detach().mean(), index)
                    if axes.alone:
                        loss = plain_loss(losses, plan.microbatches)
                    else:
                        targets = plan.targets * plan.microbatches
                        loss = loss_to_differentiate(losses, targets, axes)
                    loss.backward()  # type: ignore[no-untyped-call]
                    update.accumulate()
            update.step(ctx, plan.clip)
