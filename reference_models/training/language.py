"""The training loop that the language models share.  Their programs call it in the ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from pytest_trainsafe.reference_models.config import VOCABULARY
from pytest_trainsafe.reference_models.datasets import text
from pytest_trainsafe.reference_models.networks.deepseek import Transformer
from pytest_trainsafe.reference_models.parallel.axes import Axes
from pytest_trainsafe.reference_models.parallel.context.zigzag import take_part
from pytest_trainsafe.reference_models.parallel.data.update import Update
from pytest_trainsafe.reference_models.parallel.experts.routing import update_biases
from pytest_trainsafe.reference_models.parallel.fp8 import finish_fp8_step
from pytest_trainsafe.reference_models.parallel.pipeline.pipeline import Pipeline
from pytest_trainsafe.reference_models.parallel.pipeline.schedules import TORCHS, require_known
from pytest_trainsafe.reference_models.parallel.pipeline.stages import Stage, cut_into_stages
from pytest_trainsafe.reference_models.parallel.techniques import compiled
from pytest_trainsafe.reference_models.parallel.tensor.loss import loss_to_differentiate
from pytest_trainsafe.reference_models.plain import fp8 as plain_fp8
from pytest_trainsafe.reference_models.plain import routing as plain_routing
from pytest_trainsafe.reference_models.plain.update import PlainUpdate, plain_loss

if TYPE_CHECKING:
    from pytest_trainsafe.record.context import Context
    from pytest_trainsafe.reference_models.parallel.pipeline.torch_pipeline import TorchPipeline


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a language model is trained.

    A step has `microbatches` micro-batches over all ranks, of `batch_size` sequences each.  `clip`
    is the maximum gradient norm; 0 turns clipping off.  `schedule` is the schedule of a pipeline.
    """

    batch_size: int
    seq_len: int
    microbatches: int
    steps: int
    learning_rate: float
    clip: float = 0.0
    schedule: str = "1f1b"
    vocabulary: int = VOCABULARY

    @property
    def tokens_in_step(self) -> int:
        """The number of targets of one optimizer step, over all micro-batches and ranks."""
        return self.microbatches * self.batch_size * self.seq_len


def train_language_model(
    ctx: Context, model: nn.Module, axes: Axes, recipe: Recipe, annotations: Mapping[str, Any]
) -> None:
    """Train `model`, where `model(tokens, positions, targets)` returns the loss of every token.

    With pp, a rank trains its stages of the model.  On a single device, the loss scale, the update,
    the FP8 scales and the biases of routers come from separate code (`plain/`), so that an error in
    the code of the parallel models is not in the reference as well.
    """
    require_known(recipe.schedule)
    held: nn.ModuleList = nn.ModuleList([model])
    pipeline: Pipeline | TorchPipeline | None = None
    if axes.pp.size > 1:
        assert isinstance(model, Transformer)
        stages = cut_into_stages(model, axes)
        held = nn.ModuleList(stages)
    held = held.to(device=ctx.device, dtype=ctx.dtype)
    ctx.initialize(held)
    numbers = ctx.microbatches(recipe.microbatches)
    update: Update | PlainUpdate
    if axes.alone:
        update = PlainUpdate(held, recipe.learning_rate)
    else:
        update = Update(held, axes, recipe.learning_rate, backwards=len(numbers))
    compiled(model, axes)
    ctx.watch(held, update.optimizer, annotations=update.annotated(annotations))
    if axes.pp.size > 1:
        pipeline = _pipeline(ctx, stages, axes, recipe)

    def objective(losses: Tensor) -> Tensor:
        if axes.alone:
            return plain_loss(losses, recipe.microbatches)
        return loss_to_differentiate(losses, recipe.tokens_in_step, axes)

    def report(losses: Tensor, index: int) -> None:
        ctx.loss(losses.detach().sum() / (recipe.batch_size * recipe.seq_len), index)

    for step in ctx.steps(recipe.steps):

        def inputs(index: int, first: int = step * recipe.microbatches) -> list[Tensor]:
            return _inputs(ctx, axes, recipe, first + index)

        with ctx.step():
            if pipeline is not None:
                pipeline.run(ctx, numbers, inputs, objective, report, update.accumulate)
            else:
                for index in numbers:
                    with ctx.microbatch(index):
                        losses = model(*inputs(index))
                        report(losses, index)
                        objective(losses).backward()  # type: ignore[no-untyped-call]
                        update.accumulate()
            update.step(ctx, recipe.clip)
            if axes.alone:
                plain_fp8.finish_step(held)
                plain_routing.update_biases(held)
            else:
                finish_fp8_step(held, axes)
                update_biases(held, axes)


def _pipeline(
    ctx: Context, stages: list[Stage], axes: Axes, recipe: Recipe
) -> Pipeline | TorchPipeline:
    if recipe.schedule not in TORCHS:
        return Pipeline(stages, axes, recipe.schedule)
    # Imported only for these schedules, because the import takes half a second.
    from pytest_trainsafe.reference_models.parallel.pipeline.torch_pipeline import TorchPipeline

    return TorchPipeline(ctx, stages, axes, recipe.schedule, recipe.microbatches)


def _inputs(ctx: Context, axes: Axes, recipe: Recipe, number: int) -> list[Tensor]:
    """Return this rank's tokens, positions and targets of micro-batch `number` of the training.

    Under cp, all three are divided in the same way, and this rank's parts are returned.
    """
    tokens, targets = text.batch(
        number, recipe.batch_size, recipe.seq_len, ctx.seed, recipe.vocabulary
    )
    positions = torch.arange(recipe.seq_len)[None]
    return [take_part(whole, axes.cp).to(ctx.device) for whole in (tokens, positions, targets)]
