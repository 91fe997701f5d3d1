"""A data-parallel program that chooses its own dtype, as trainers with mixed precision do."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn


def train(ctx: Any, own: str, autocast: bool, reduced: bool = True) -> None:
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 32))
    dtype = getattr(torch, own)
    model = model.to(ctx.device, dtype)
    ctx.initialize(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    ctx.watch(model, optimizer)
    for step in range(2):
        with ctx.step():
            for index in ctx.microbatches(4):
                data = torch.Generator().manual_seed(4 * step + index)
                batch = torch.randn(8, 32, generator=data, dtype=torch.float32)
                with ctx.microbatch(index), torch.autocast("cpu", enabled=autocast):
                    loss = model(batch.to(dtype)).float().square().mean()
                    ctx.loss(loss)
                    loss.backward()
            for parameter in model.parameters():
                if reduced:
                    dist.all_reduce(parameter.grad, group=ctx.group("dp"))
            optimizer.step()
            optimizer.zero_grad()
