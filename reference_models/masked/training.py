"""The training of `masked.train`: padded batches, a loss over the tokens of a step, one update.

Faults of `bugs/shared.py` that are not in the network are planted here by conditions on `fault`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_trainsafe.judges.replay.per_example.keys import per_example_keys
from pytest_trainsafe.reference_models.datasets import text
from pytest_trainsafe.reference_models.masked.network import Masked
from pytest_trainsafe.reference_models.plain import fp8

if TYPE_CHECKING:
    from pytest_trainsafe.record.context import Context


@dataclass(frozen=True, slots=True)
class Recipe:
    """The arguments of `masked.train`, and whether layers are recomputed."""

    layers: int
    hidden: int
    heads: int
    seq_len: int
    batch_size: int
    microbatches: int
    steps: int
    learning_rate: float
    clip: float
    vocabulary: int
    z_loss: float
    dropout: float
    fp8: bool
    padding: int
    unused_ids: int
    loss_scale: float
    repeats: int
    recompute: bool
    fault: str


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch: tokens and targets, both [batch, sequence], with a mask and keys.

    `mask` [batch, sequence] is True for tokens that are not padding.  `keys` [batch] has a key for
    each sample, from which its dropout is drawn.
    """

    tokens: Tensor
    targets: Tensor
    mask: Tensor
    keys: Tensor


def batch_of(number: int, recipe: Recipe, seed: int) -> Batch:
    """Return micro-batch `number` of the whole training, with samples of unequal lengths.

    The tokens and length of a sample do not depend on how samples are divided into micro-batches.
    """
    tokens, targets = text.batch(number, recipe.batch_size, recipe.seq_len, seed, recipe.vocabulary)
    first = number * recipe.batch_size
    samples = range(first, first + recipe.batch_size)
    # Lengths go from half of the sequence to all of it, and differ between neighbouring samples.
    shortest = (recipe.seq_len + 1) // 2
    lengths = [recipe.seq_len - sample * 3 % (recipe.seq_len - shortest + 1) for sample in samples]
    mask = torch.arange(recipe.seq_len) < torch.tensor(lengths)[:, None]
    keys = per_example_keys(0, samples, seed=seed)
    padded = [F.pad(each, (0, recipe.padding)) for each in (tokens * mask, targets * mask, mask)]
    tokens, targets, mask = (each.repeat(recipe.repeats, 1) for each in padded)
    return Batch(tokens, targets, mask, keys.repeat(recipe.repeats))


def train_masked(ctx: Context, recipe: Recipe) -> None:
    """Train the model of a recipe, and record it."""
    model = _model(ctx, recipe)
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.learning_rate)
    ctx.watch(model, optimizer)
    numbers = ctx.microbatches(recipe.microbatches)
    for step in range(recipe.steps):
        first = step * recipe.microbatches
        with ctx.step():
            of_step = [
                int(batch_of(first + n, recipe, ctx.seed).mask.sum())
                for n in range(recipe.microbatches)
            ]
            own = sum(of_step[index] for index in numbers)
            for index in numbers:
                batch = batch_of(first + index, recipe, ctx.seed)
                tokens = _normaliser(recipe, batch, sum(of_step), own * ctx.point.size("dp"))
                with ctx.microbatch(index):
                    logits = model(batch.tokens, batch.mask, batch.keys)
                    loss = _loss(logits, batch, recipe, tokens)
                    ctx.loss(loss.detach())
                    _backward(model, loss * recipe.loss_scale, recipe)
            if ctx.point.size("dp") > 1:
                for parameter in model.parameters():
                    dist.all_reduce(parameter.grad, group=ctx.group("dp"))
            _update(model, optimizer, recipe)
            if recipe.fp8 and ctx.point.size("dp") > 1:
                _share_largest(model, ctx.group("dp"))
            fp8.finish_step(model)


def _model(ctx: Context, recipe: Recipe) -> Masked:
    model = Masked(
        recipe.vocabulary + recipe.unused_ids,
        recipe.layers,
        recipe.hidden,
        recipe.heads,
        recipe.dropout,
        recipe.fault,
    )
    model = model.to(device=ctx.device, dtype=ctx.dtype)
    model.recompute = recipe.recompute
    ctx.initialize(model)
    if recipe.fp8:
        for name, module in model.named_modules():
            if name.endswith(("fc1", "fc2")):
                fp8.use_fp8(module)
                if recipe.fault == "fp8-scale-of-last-microbatch":
                    _follow_last(module)
    return model


def _normaliser(recipe: Recipe, batch: Batch, of_step: int, of_rank: int) -> float:
    """Return the number by which the sum of the losses of a micro-batch's tokens is divided.

    `of_step` is the number of tokens of the step over all ranks.  `of_rank` is the number that the
    fault "mean-per-rank" uses instead.
    """
    if recipe.fault == "loss-per-microbatch":
        return float(batch.mask.sum()) * recipe.microbatches
    return of_rank if recipe.fault == "mean-per-rank" else of_step


def _loss(logits: Tensor, batch: Batch, recipe: Recipe, tokens: float) -> Tensor:
    """Return the micro-batch's part of the step's loss: cross entropy and z-loss.

    Both are sums over the micro-batch's tokens, divided by `tokens`.
    """
    known = logits[..., : recipe.vocabulary]
    losses = F.cross_entropy(known.flatten(0, 1), batch.targets.flatten(), reduction="none")
    every = logits if recipe.fault == "z-loss-counts-unused-ids" else known
    squares = every.logsumexp(-1).square()
    counted = squares if recipe.fault == "z-loss-counts-padding" else squares * batch.mask
    auxiliary = recipe.z_loss * counted.sum()
    if recipe.fault == "auxiliary-loss-per-sample":
        auxiliary = auxiliary / len(batch.tokens)
    return ((losses.view_as(batch.mask) * batch.mask).sum() + auxiliary) / tokens


def _backward(model: nn.Module, loss: Tensor, recipe: Recipe) -> None:
    if recipe.fault == "gradient-overwritten":
        model.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    if recipe.fault == "clip-per-microbatch":
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)


def _update(model: nn.Module, optimizer: torch.optim.Optimizer, recipe: Recipe) -> None:
    """Divide the gradients by the loss scale, clip them, and update the parameters."""
    parameters = list(model.parameters())
    if recipe.fault == "clip-before-unscale":
        torch.nn.utils.clip_grad_norm_(parameters, recipe.clip)
    for parameter in parameters:
        assert parameter.grad is not None
        parameter.grad /= recipe.loss_scale
    if recipe.fault not in ("clip-before-unscale", "clip-per-microbatch"):
        torch.nn.utils.clip_grad_norm_(parameters, recipe.clip)
    optimizer.step()
    optimizer.zero_grad()


def _follow_last(linear: nn.Module) -> None:
    """Plant a fault: FP8 scales of a layer follow only the last micro-batch of each step.

    These are the scales of its input and gradient.  Without the fault, they follow the largest
    value in any micro-batch of the step.
    """
    layer = linear.forward
    assert isinstance(layer, fp8.PlainFp8)
    layer.of_input = _OfLast(layer.of_input.dtype)
    layer.of_gradient = _OfLast(layer.of_gradient.dtype)


class _OfLast(fp8.Rounding):
    """A Rounding whose scale follows the last micro-batch of a step."""

    def __call__(self, tensor: Tensor) -> Tensor:
        """Return the rounded values of a tensor; remember only the largest value of this tensor."""
        rounded = fp8.Rounding.__call__(self, tensor)
        self.of_step = self.of_step[-1:]
        return rounded


def _share_largest(model: nn.Module, group: dist.ProcessGroup) -> None:
    """Make the FP8 scales of all ranks follow the largest value on any rank."""
    for module in model.modules():
        layer = module.forward
        if not isinstance(layer, fp8.PlainFp8):
            continue
        for rounding in (layer.of_input, layer.of_weight, layer.of_gradient):
            if rounding.of_step:
                largest = torch.stack(rounding.of_step).max()
                dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
                rounding.of_step = [largest]
