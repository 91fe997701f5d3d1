"""A program of which one rank can receive into a float32 tensor, whatever dtype it runs in."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn


def train(ctx: Any, fixed: bool = False) -> None:
    model = nn.Linear(8, 8).to(ctx.dtype)
    ctx.initialize(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ctx.watch(model, optimizer)
    group = ctx.group("tp")
    with ctx.step():
        for index in ctx.microbatches(2):
            batch = torch.full((2, 8), 0.5 + index, dtype=ctx.dtype)
            if ctx.coordinates["tp"]:
                batch = torch.empty(2, 8, dtype=torch.float32 if fixed else ctx.dtype)
            dist.broadcast(batch, 0, group=group)
            with ctx.microbatch(index):
                model(batch).square().mean().backward()
        optimizer.step()
