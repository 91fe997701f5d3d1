"""Trains a small network by a recipe, with plain PyTorch or DeepSpeed.  Runs in the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from pytest_trainsafe.fixtures.deepspeed.engine import start
from pytest_trainsafe.fixtures.deepspeed.reference import Recipe as Plain
from pytest_trainsafe.reference_models.deepspeed_bugs.plants import plant
from pytest_trainsafe.reference_models.deepspeed_bugs.programs.network import Network, micro_batch
from pytest_trainsafe.reference_models.deepspeed_bugs.programs.recipe import Recipe
from pytest_trainsafe.reference_models.deepspeed_bugs.releases import start_release

if TYPE_CHECKING:
    from pytest_trainsafe.record.context import Context


def train_plainly(ctx: Context, recipe: Recipe) -> None:
    """Trains with plain PyTorch on one device."""
    model = _network(ctx)
    optimizer = recipe.optimizer_of(model)
    rates = [group["lr"] for group in optimizer.param_groups]
    held = [each for each in model.parameters() if each.requires_grad]
    plain = Plain(held, optimizer, recipe.clip, recipe.wide_accumulation)
    ctx.watch(model, plain)
    for step in range(recipe.steps):
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * recipe.warmth(step)
        with ctx.step():
            for index in ctx.microbatches(recipe.microbatches):
                with ctx.microbatch(index):
                    loss = model(*_batch(ctx, step, index))
                    ctx.loss(loss)
                    (loss / recipe.microbatches).backward()
                plain.accumulate()
            plain.step()
            ctx.grad_norm(plain.norm)
        plain.zero_grad()


def train_by_deepspeed(ctx: Context, recipe: Recipe, bug: str, release: str) -> None:
    """Trains with DeepSpeed's engine.

    `release` is the folder of an old release to train with, "" for the installed one.  `bug` is the
    name of a bug to plant, "" for none.
    """
    deepspeed = start_release(release) if release else start(ctx)
    if bug:
        plant(bug)
    model = _network(ctx)
    dp = ctx.point.size("dp")
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=recipe.optimizer_of(model),
        config=recipe.config(int(ctx.point.get("zero", 0)), ctx.dtype, dp),
        dist_init_required=False,
    )
    ctx.watch(engine, annotations={"gradients": {"mean": ["dp"]}})
    numbers = ctx.microbatches(recipe.microbatches)
    for step in range(recipe.steps):
        with ctx.step():
            for index in numbers:
                if recipe.by_hand:
                    engine.set_gradient_accumulation_boundary(index == numbers[-1])
                with ctx.microbatch(index):
                    loss = engine(*_batch(ctx, step, index))
                    ctx.loss(loss)
                    engine.backward(loss / len(numbers) if recipe.by_hand else loss)
                if not recipe.by_hand:
                    engine.step()
            if recipe.by_hand:
                engine.step()
            _report_norm(ctx, engine)


def _report_norm(ctx: Context, engine: Any) -> None:
    norm = engine.get_global_grad_norm()
    if norm is not None:  # stage 0 in float32 has none
        ctx.grad_norm(norm)


def _network(ctx: Context) -> Network:
    network = Network().to(ctx.device, ctx.dtype)
    ctx.initialize(network)
    return network


def _batch(ctx: Context, step: int, index: int) -> list[torch.Tensor]:
    return [each.to(ctx.device, ctx.dtype) for each in micro_batch(step, index, ctx.seed)]
