"""Tensor parallelism in an order of its own: each rank gets big and small heads.

The rows of a projection belong to six heads of unequal widths.  Rank 0 of two has the heads 0, 3
and 4, rank 1 has the heads 1, 2 and 5, which no key of an annotation describes.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

WIDTHS = (4, 2, 4, 2, 4, 2)
STARTS = (0, 4, 6, 10, 12, 16, 18)
HEADS = {0: (0, 3, 4), 1: (1, 2, 5)}


def rows_of(rank: int) -> list[slice]:
    """The rows of the heads that a rank has."""
    return [slice(STARTS[head], STARTS[head + 1]) for head in HEADS[rank]]


def by_heads(coordinates: Any, sizes: Any, shape: tuple[int, ...]) -> Any:
    """The layout of the projection's weight: dimension 0 by heads."""
    return (STARTS[-1], shape[1]), [rows_of(coordinates["tp"]), slice(None)]


def last_by_heads(coordinates: Any, sizes: Any, shape: tuple[int, ...]) -> Any:
    """The layout of an activation or a weight whose last dimension is cut by heads."""
    whole = [slice(None)] * (len(shape) - 1)
    return (*shape[:-1], STARTS[-1]), [*whole, rows_of(coordinates["tp"])]


def consecutive(coordinates: Any, sizes: Any, shape: tuple[int, ...]) -> Any:
    """A wrong layout: the last dimension is cut into consecutive columns."""
    start = coordinates["tp"] * 8
    return (shape[0], STARTS[-1]), [slice(None), slice(start, start + shape[1])]


ANNOTATIONS = {
    "parameters": {
        "first.weight": {"slices": by_heads},
        "second.weight": {"slices": last_by_heads, "axes": ["tp"]},
    },
    "modules": {"first": {"output": {"slices": last_by_heads}}},
}


class Sum(torch.autograd.Function):
    """The sum over the ranks of a group; its gradient reaches each of them whole."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None


class Model(nn.Module):
    """Two projections with a tanh between them; ranks divide the rows of the first by heads."""

    def __init__(self, ctx: Any, fault: str) -> None:
        super().__init__()
        self.parallel = ctx.point.size("tp") > 1
        mine = HEADS[ctx.coordinates["tp"]] if self.parallel else range(6)
        width = sum(WIDTHS[head] for head in mine)
        self.first = nn.Linear(8, width, bias=False)
        self.second = nn.Linear(width, 8, bias=False)
        self.group, self.fault = ctx.group("tp"), fault if self.parallel else ""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        if self.fault == "rolled":
            hidden = hidden.roll(1, -1)
        out = self.second(torch.tanh(hidden))
        return Sum.apply(out, self.group) if self.parallel else out


def train(ctx: Any, fault: str = "") -> None:
    """Two steps.  Faults: columns are rolled by one; an annotation has consecutive columns."""
    model = Model(ctx, fault).to(ctx.device, ctx.dtype)
    declared: dict[str, Any] = {**ANNOTATIONS}
    declared["modules"] = {**declared["modules"], "second": {"output": {"tp_partial": True}}}
    if fault == "consecutive":
        declared["modules"]["first"] = {"output": {"slices": consecutive}}
    ctx.initialize(model, annotations=ANNOTATIONS)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    ctx.watch(model, optimizer, annotations=declared)
    for step in range(2):
        with ctx.step(), ctx.microbatch(0):
            generator = torch.Generator().manual_seed(step)
            data = torch.randn(4, 8, generator=generator, dtype=torch.float64)
            loss = model(data.to(ctx.device, ctx.dtype)).square().mean()
            ctx.loss(loss)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
