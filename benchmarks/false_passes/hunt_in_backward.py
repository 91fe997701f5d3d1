"""An optimizer that steps within the backward, as the tutorial of torch for saving memory does.

Gradients are gone when the step ends; each dp rank has a slice of the one batch of a step.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pytest_trainsafe import Context

BATCH, WIDTH = 8, 16
ANNOTATIONS = {"modules": {"*": {"output": {"dp_dim": 0}}}, "loss": {"partial": ["dp"]}}


def spread(name: str, _shape: object) -> tuple[float, float]:
    """The mean and the standard deviation of a parameter's first values; weights of norms lie around one."""
    return (1.0 if "norm" in name and name.endswith("weight") else 0.0), 0.3


def train(ctx: Context, fault: str = "", steps: int = 2) -> None:
    fault = fault if ctx.world_size > 1 else ""
    model = nn.Sequential(
        nn.Linear(WIDTH, 2 * WIDTH), nn.Tanh(), nn.LayerNorm(2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
    )
    model = model.to(ctx.device, ctx.dtype)
    ctx.initialize(model, std=spread)
    size, rank = ctx.point.size("dp"), ctx.coordinates["dp"]

    def update(parameter: Any) -> None:
        rate = 0.1
        if fault == "rate" and parameter is model[2].weight:
            rate = 0.11  # fault: rate
        if fault != "unreduced" or parameter is not model[3].bias:  # fault: unreduced
            dist.all_reduce(parameter.grad, group=ctx.group("dp"))
        with torch.no_grad():
            parameter.sub_(parameter.grad, alpha=rate)
        parameter.grad = None

    ctx.watch(model, annotations=ANNOTATIONS)
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    for step in range(steps):
        with ctx.step():
            for number in ctx.microbatches(1, order="split"):
                with ctx.microbatch(number):
                    inputs, targets = batch(ctx, step)
                    mine = slice(rank * BATCH // size, (rank + 1) * BATCH // size)
                    loss = (model(inputs[mine]) - targets[mine]).square().sum() / (BATCH * WIDTH)
                    ctx.loss(loss)
                    loss.backward()


def batch(ctx: Context, step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    values = torch.randn(2, BATCH, WIDTH, generator=generator, dtype=torch.float32).to(ctx.dtype)
    return values[0], values[1]
