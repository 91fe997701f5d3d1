"""A data-parallel layer whose learning rate is an axis."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn


def train(ctx: Any, lr: float = 0.1, fault: bool = False) -> None:
    """One step; with `fault`, ranks do not reduce the bias's gradient at small learning rates."""
    model = nn.Linear(4, 4).to(ctx.device, ctx.dtype)
    ctx.initialize(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    ctx.watch(model, optimizer)
    with ctx.step():
        for index in ctx.microbatches(4):
            with ctx.microbatch(index):
                x = torch.linspace(-1, 1 + index, 8, dtype=torch.float32).reshape(2, 4)
                loss = model(x.to(ctx.device, ctx.dtype)).square().mean() / 4
                ctx.loss(loss)
                loss.backward()
        for name, parameter in model.named_parameters():
            if fault and ctx.world_size > 1 and name == "bias" and lr < 5e-4:
                continue
            dist.all_reduce(parameter.grad, group=ctx.group("dp"))
        optimizer.step()
        optimizer.zero_grad()
