"""A program whose candidate can use a kernel that works only in float32, or in no dtype."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn


class Kernel(nn.Module):
    def __init__(self, fused: str) -> None:
        super().__init__()
        self.fused = fused

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        if self.fused == "float32":
            assert values.dtype is torch.float32
        if self.fused == "broken":
            raise RuntimeError(f"broken for {values.dtype}")
        return values.tanh()


def train(ctx: Any, fused: str = "") -> None:
    model = nn.Sequential(nn.Linear(8, 8), Kernel(fused)).to(ctx.dtype)
    ctx.initialize(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ctx.watch(model, optimizer)
    with ctx.step():
        for index in ctx.microbatches(2):
            batch = torch.full((2, 8), 0.1 + index, dtype=ctx.dtype)
            with ctx.microbatch(index):
                model(batch).square().mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, group=ctx.group("dp"))
        optimizer.step()
