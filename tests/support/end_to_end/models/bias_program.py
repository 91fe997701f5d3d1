"""A row-parallel layer whose bias is added on every rank, or before the sum on one rank."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

WIDTH = 8


class Sum(torch.autograd.Function):
    """The sum over a group, whose gradient every rank takes as it is."""

    @staticmethod
    def forward(_: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(_: Any, *grads: Any) -> Any:
        return grads[0], None


class Row(nn.Module):
    def __init__(self, group: dist.ProcessGroup, *, first: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(WIDTH, WIDTH // group.size()))
        self.bias = nn.Parameter(torch.empty(WIDTH))
        self.group, self.first = group, first

    def forward(self, x: Tensor) -> Tensor:
        width = WIDTH // self.group.size()
        part = x.narrow(-1, self.group.rank() * width, width)
        if not self.first:
            summed: Tensor = Sum.apply(part @ self.weight.T, self.group) + self.bias
            return summed
        bias = self.bias if self.group.rank() == 0 else None
        added: Tensor = Sum.apply(nn.functional.linear(part, self.weight, bias), self.group)
        return added


def train(ctx: Any, first: bool = False) -> None:
    """One step; with `first`, only rank 0 adds the bias, and does so before the sum over tp."""
    model = Row(ctx.group("tp"), first=first).to(ctx.device, ctx.dtype)
    layouts = {"parameters": {"weight": {"tp_dim": 1}}}
    ctx.initialize(model, annotations=layouts)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    ctx.watch(model, optimizer, annotations=layouts)
    with ctx.step():
        with ctx.microbatch(0):
            x = torch.linspace(-1, 1, 4 * WIDTH, dtype=ctx.dtype, device=ctx.device)
            loss = model(x.view(4, WIDTH)).square().mean()
            ctx.loss(loss)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
