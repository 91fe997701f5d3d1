"""A program with a kernel that exists only for float32, as many programs have."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn


class OnlyFloat32(nn.Module):
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        if values.dtype is not torch.float32:
            raise TypeError(f"no kernel for {values.dtype}")
        return values.tanh()


def train(ctx: Any, reduced: bool = True) -> None:
    model = nn.Sequential(nn.Linear(8, 8), OnlyFloat32()).to(ctx.dtype)
    ctx.initialize(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ctx.watch(model, optimizer)
    with ctx.step():
        for index in ctx.microbatches(2):
            batch = torch.full((2, 8), 0.1 + index, dtype=ctx.dtype)
            with ctx.microbatch(index):
                model(batch).square().mean().backward()
        for parameter in model.parameters():
            if reduced:
                dist.all_reduce(parameter.grad, group=ctx.group("dp"))
        optimizer.step()
