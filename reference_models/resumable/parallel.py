"""Programs with torch's data parallelism: DistributedDataParallel and `fully_shard`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from pytest_trainsafe.reference_models.resumable import STEPS
from pytest_trainsafe.reference_models.resumable.training import train

if TYPE_CHECKING:
    from pytest_trainsafe.record.context import Context


def _network(ctx: Context) -> nn.Sequential:
    torch.manual_seed(ctx.seed)
    layers = [nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Dropout(0.2)) for _ in range(2)]
    return nn.Sequential(*layers, nn.Linear(8, 1)).to(ctx.dtype)


def _train(ctx: Context, model: nn.Module, steps: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    # Each rank has data and dropout of its own.
    torch.manual_seed(1000 * ctx.seed + ctx.rank)

    def step() -> None:
        [index] = ctx.microbatches(ctx.world_size)
        x = torch.randn(6, 8, dtype=ctx.dtype)
        with ctx.microbatch(index):
            loss = F.mse_loss(model(x), x.sin().sum(1, keepdim=True))
            ctx.loss(loss)
            loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    train(ctx, model, optimizer, step, steps)


def ddp(ctx: Context, steps: int = STEPS) -> None:
    """Train a regression with DistributedDataParallel, each rank on its own data."""
    _train(ctx, DistributedDataParallel(_network(ctx), process_group=ctx.group("dp")), steps)


def fsdp2(ctx: Context, steps: int = STEPS) -> None:
    """Train the same regression with `fully_shard`, applied to each layer and to the model."""
    model = _network(ctx)
    mesh = ctx.mesh["dp"]
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    _train(ctx, model, steps)
