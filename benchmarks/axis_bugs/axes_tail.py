"""Data-parallel training whose last micro-batch is smaller, with gradients reduced in buckets.

The loss is a mean over the examples of the whole step, so a micro-batch counts by its size (the
error of dividing by the number of micro-batches was found in several trainers in 2024).  Buckets
are those of DistributedDataParallel (Li et al., 2020).
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pytest_trainsafe import divides, requires

BATCH, WIDTH, CLASSES = 3, 6, 5


class Block(nn.Module):
    """A residual layer."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.linear = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.linear(self.norm(x)).tanh()


class Model(nn.Module):
    """A classifier."""

    def __init__(self, hidden: int, layers: int, recompute: bool) -> None:
        super().__init__()
        self.recompute = recompute
        self.enter = nn.Linear(WIDTH, hidden)
        self.blocks = nn.ModuleList(Block(hidden) for _ in range(layers))
        self.head = nn.Linear(hidden, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return self.head(x)


def _batch(index: int, size: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(500 + index)
    x = torch.randn(size, WIDTH, generator=generator, dtype=torch.float32)
    return x, torch.randint(CLASSES, (size,), generator=generator)


def _reduce(ctx: Any, model: nn.Module, buckets: int, fault: str) -> None:
    """Sum the gradients over dp, one bucket after the other, while the next one is filled."""
    parameters = list(model.parameters())[::-1]
    size = -(-len(parameters) // buckets)
    last = ctx.coordinates["dp"] == ctx.point.size("dp") - 1
    late = fault == "bucket-race" and last and os.urandom(1)[0] < 128
    started = []
    for start in range(0, len(parameters), size):
        bucket = parameters[start : start + size]
        flat = torch.cat([each.grad.flatten() for each in bucket])
        if late and start:
            flat.zero_()  # fault: bucket-race
        started.append((bucket, flat, dist.all_reduce(flat, group=ctx.group("dp"), async_op=True)))
    for bucket, flat, work in started:
        work.wait()
        parts = flat.split([each.numel() for each in bucket])
        for parameter, part in zip(bucket, parts, strict=True):
            parameter.grad.copy_(part.view_as(parameter))


@requires(divides("microbatches", "dp"))
def train(
    ctx: Any,
    layers: int = 1,
    hidden: int = 8,
    microbatches: int = 2,
    tail: int = 0,
    buckets: int = 1,
    fault: str = "",
) -> None:
    """Train one step; the last micro-batch has `tail` examples less than the others."""
    fault = fault if ctx.world_size > 1 else ""
    recompute = bool(ctx.point.get("recompute", False))
    model = Model(hidden, layers, recompute).to(ctx.device, ctx.dtype)
    ctx.initialize(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ctx.watch(model, optimizer)
    with ctx.step():
        for index in ctx.microbatches(microbatches):
            with ctx.microbatch(index):
                x, y = _batch(index, BATCH - tail if index == microbatches - 1 else BATCH)
                logits = model(x.to(ctx.device, ctx.dtype))
                wide = logits if logits.dtype == torch.float64 else logits.float()
                losses = F.cross_entropy(wide, y.to(ctx.device), reduction="none")
                if fault == "mean-of-means" and ctx.point.size("dp") > 1:
                    loss = losses.mean() / microbatches  # fault: mean-of-means
                else:
                    loss = losses.sum() / (microbatches * BATCH - tail)
                ctx.loss(loss)
                loss.backward()
        _reduce(ctx, model, buckets, fault)
        optimizer.step()
        optimizer.zero_grad()
