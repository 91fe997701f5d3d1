"""A tensor-parallel MLP in one module, whose forward applies two autograd functions."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

ANNOTATIONS = {"parameters": {"up": {"tp_dim": 0}, "up_bias": {"tp_dim": 0}, "down": {"tp_dim": 1}}}


class Enter(torch.autograd.Function):
    """Returns its input, and sums the ranks' gradients of it, unless `mistake` is "enter"."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: dist.ProcessGroup, mistake: str) -> Tensor:
        ctx.group, ctx.mistake = group, mistake
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        total = grad.clone()
        if ctx.mistake != "enter":
            dist.all_reduce(total, group=ctx.group)
        return total, None, None


class Leave(torch.autograd.Function):
    """Sums the ranks' terms, and passes on their gradient, or its sum if `mistake` is "leave"."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: dist.ProcessGroup, mistake: str) -> Tensor:
        ctx.group, ctx.mistake = group, mistake
        total = tensor.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        total = grad.clone()
        if ctx.mistake == "leave":
            dist.all_reduce(total, group=ctx.group)
        return total, None, None


class Fused(nn.Module):
    def __init__(self, hidden: int, group: dist.ProcessGroup, mistake: str) -> None:
        super().__init__()
        wide = 4 * hidden // dist.get_world_size(group)
        self.up = nn.Parameter(torch.empty(wide, hidden))
        self.up_bias = nn.Parameter(torch.empty(wide))
        self.down = nn.Parameter(torch.empty(hidden, wide))
        self.given = group, mistake

    def forward(self, x: Tensor) -> Tensor:
        entered = Enter.apply(x, *self.given)
        wide = torch.tanh(nn.functional.linear(entered, self.up, self.up_bias))
        total: Tensor = Leave.apply(nn.functional.linear(wide, self.down), *self.given)
        return total


def train(ctx: Any, mistake: str = "") -> None:
    group = ctx.group("tp")
    model = nn.Sequential(nn.Linear(6, 8), Fused(8, group, mistake), nn.Linear(8, 3))
    ctx.initialize(model.to(ctx.dtype), annotations=ANNOTATIONS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ctx.watch(model, optimizer, annotations=ANNOTATIONS)
    with ctx.step():
        for index in ctx.microbatches(2):
            with ctx.microbatch(index):
                generator = torch.Generator().manual_seed(index)
                inputs = torch.randn(5, 6, generator=generator, dtype=torch.float64)
                loss = model(inputs.to(ctx.dtype)).square().mean() / 2
                ctx.loss(loss)
                loss.backward()
        optimizer.step()
