"""A model that counts its forwards in two buffers, which it may sum over dp."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


class Counting(nn.Module):
    seen: Tensor
    total: Tensor

    def __init__(self, by: int, group: dist.ProcessGroup | None) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))
        self.register_buffer("total", torch.zeros(()))
        self.by, self.group = by, group

    def forward(self, x: Tensor) -> Tensor:
        count = torch.tensor(self.by)
        if self.group is not None:
            dist.all_reduce(count, group=self.group)
        self.seen += count
        self.total += count
        result: Tensor = self.linear(x)
        return result


def train(ctx: Any, by: int = 1, summed: bool = False) -> None:
    group = ctx.group("dp")
    model = Counting(by, group if summed else None).to(ctx.dtype)
    ctx.initialize(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ctx.watch(model, optimizer)
    for step in range(2):
        with ctx.step():
            for index in ctx.microbatches(4):
                with ctx.microbatch(index):
                    generator = torch.Generator().manual_seed(10 * step + index)
                    x = torch.randn(5, 6, generator=generator, dtype=torch.float64)
                    loss = model(x.to(ctx.dtype)).square().mean() / 4
                    ctx.loss(loss)
                    loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, group=group)
            optimizer.step()
            optimizer.zero_grad()
