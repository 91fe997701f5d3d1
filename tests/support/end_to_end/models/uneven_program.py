"""A tensor-parallel MLP whose 11 inner features two ranks divide into 6 and 5."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pytest_trainsafe import Context

INNER = 11
CUT = {"output": {"tp_dim": -1}}
LAYOUTS: dict[str, Any] = {
    "parameters": {
        "up.weight": {"tp_dim": 0},
        "up.bias": {"tp_dim": 0},
        "down.weight": {"tp_dim": 1},
    },
    "modules": {"up": CUT, "activation": CUT, "down": {"output": {"tp_partial": True}}},
}


class Copy(torch.autograd.Function):
    """Passes its input to all ranks of a group, and sums their gradients of it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        grad = grad.clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class Sum(torch.autograd.Function):
    """Sums the inputs of a group's ranks; each rank gets the gradient of the sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        total = x.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class Mlp(nn.Module):
    """Each rank has up to ceil(11 / ranks) of the inner features, as torch.chunk divides them."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__()
        ranks, rank = dist.get_world_size(group), dist.get_rank(group)
        own = len(torch.arange(INNER).chunk(ranks)[rank])
        self.group = group
        self.up = nn.Linear(8, own)
        self.activation = nn.Tanh()
        self.down = nn.Linear(own, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.activation(self.up(Copy.apply(x, self.group)))
        return Sum.apply(self.down(inner), self.group)


def from_rounded_down_rows(weight: Tensor, group: dist.ProcessGroup) -> None:
    """Fill a rank's rows from the whole weight, from row rank·(11 // ranks) on: a wrong offset."""
    shares: list[Tensor] = [torch.empty(0)] * dist.get_world_size(group)
    dist.all_gather_object(shares, weight.detach(), group=group)
    start = dist.get_rank(group) * (INNER // len(shares))
    with torch.no_grad():
        weight.copy_(torch.cat(shares)[start : start + len(weight)])


def train(ctx: Context, steps: int = 1, wrong_offset: bool = False) -> None:
    """Train on the same batches at every Point; `wrong_offset` loads wrong rows on rank 1."""
    group = ctx.group("tp")
    model = Mlp(group).to(ctx.device, ctx.dtype)
    ctx.initialize(model, annotations=LAYOUTS)
    if wrong_offset:
        from_rounded_down_rows(model.up.weight, group)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ctx.watch(model, optimizer, annotations=LAYOUTS)
    for step in range(steps):
        with ctx.step():
            for index in ctx.microbatches(2):
                with ctx.microbatch(index):
                    drawn = torch.Generator().manual_seed(10 * step + index)
                    x = torch.randn(4, 8, generator=drawn, dtype=torch.float64)
                    y = torch.randn(4, 3, generator=drawn, dtype=torch.float64)
                    loss = (model(x.to(ctx.dtype)) - y.to(ctx.dtype)).square().mean() / 2
                    ctx.loss(loss)
                    loss.backward()
            optimizer.step()
            optimizer.zero_grad()
