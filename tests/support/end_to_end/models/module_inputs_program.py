"""A norm and two tensor-parallel layers under sp and cp: [sequence, batch, hidden].

The annotations are those of TTrace's Figure 3: parameters by `tp_dim`, and the input and the output
of a layer by the dimensions that parallelism cuts.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

ANNOTATIONS: dict[str, Any] = {
    "cp_order": "contiguous",
    "loss": {"partial": ["tp", "cp"]},
    "parameters": {
        "linear_qkv.weight": {"tp_dim": 0},
        "linear_proj.weight": {"tp_dim": 1},
        "norm.*": {"sequence_parallel": True},
    },
    "modules": {
        "": {"output": {"sp_dim": 0, "cp_dim": 0}},
        "norm": {"output": {"sp_dim": 0, "cp_dim": 0}},
        "linear_qkv": {"input": {"sp_dim": 0, "cp_dim": 0}, "output": {"tp_dim": -1, "cp_dim": 0}},
        "linear_proj": {"input": {"tp_dim": -1, "cp_dim": 0}, "output": {"sp_dim": 0, "cp_dim": 0}},
    },
}


def gathered(x: torch.Tensor, group: Any) -> torch.Tensor:
    """The parts of all ranks, one after another."""
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, x.contiguous(), group=group)
    return torch.cat(parts)


def summed(x: torch.Tensor, group: Any) -> torch.Tensor:
    """This rank's part of the sum over all ranks."""
    x = x.clone()
    dist.all_reduce(x, group=group)
    return x.chunk(dist.get_world_size(group))[dist.get_rank(group)]


class Gather(torch.autograd.Function):
    """Gathers the sequence; the gradient is a term of a sum on each rank."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return gathered(x, group)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return summed(grad, ctx.group), None


class ScatterSum(torch.autograd.Function):
    """Sums over the ranks and keeps this rank's part of the sequence."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return summed(x, group)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gathered(grad, ctx.group), None


class Column(nn.Module):
    """Gathers the sequence and computes a part of the columns."""

    def __init__(self, ctx: Any, rows: int, columns: int) -> None:
        super().__init__()
        self.group = ctx.group("tp")
        self.size = ctx.point.size("tp")
        self.weight = nn.Parameter(torch.empty(columns // self.size, rows))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.size > 1:
            x = Gather.apply(x, self.group)
        return x @ self.weight.t()


class Row(nn.Module):
    """Computes one term of the sum over tp, and returns this rank's part of the sequence."""

    def __init__(self, ctx: Any, rows: int, columns: int) -> None:
        super().__init__()
        self.group = ctx.group("tp")
        self.size = ctx.point.size("tp")
        self.weight = nn.Parameter(torch.empty(columns, rows // self.size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x @ self.weight.t()
        return ScatterSum.apply(x, self.group) if self.size > 1 else x


class Model(nn.Module):
    """A norm, a column-parallel and a row-parallel layer, and a residual."""

    def __init__(self, ctx: Any, fault: str) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.linear_qkv = Column(ctx, 8, 16)
        self.linear_proj = Row(ctx, 16, 8)
        self.size, self.rank = ctx.point.size("tp"), ctx.coordinates["tp"]
        self.fault = fault if self.size > 1 else ""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.chunk(self.size)[self.rank]
        hidden = self.norm(x)
        if self.fault == "input":
            hidden = hidden * 1.01
        if self.fault == "input_grad":
            hidden = hidden + 0.01 * (hidden - hidden.detach())
        return x + self.linear_proj(torch.tanh(self.linear_qkv(hidden)))


def train(ctx: Any, fault: str = "") -> None:
    """Two steps.

    A `fault` changes what is between the norm and the layer (input, input_grad), or leaves the
    layout of the layer's input out (undeclared).
    """
    assert ctx.point.get("sp", False) or ctx.point.size("tp") == 1
    cp_size, cp_rank = ctx.point.size("cp"), ctx.coordinates["cp"]
    model = Model(ctx, fault).to(ctx.device, ctx.dtype)
    ctx.initialize(model, annotations=ANNOTATIONS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    annotations = ANNOTATIONS
    if fault == "undeclared":
        bare = {"input": {}, "output": {"tp_dim": -1, "cp_dim": 0}}
        annotations = {**ANNOTATIONS, "modules": {**ANNOTATIONS["modules"], "linear_qkv": bare}}
    ctx.watch(model, optimizer, annotations=annotations)
    for step in range(2):
        with ctx.step(), ctx.microbatch(0):
            generator = torch.Generator().manual_seed(step)
            data = torch.randn(8, 2, 8, generator=generator, dtype=torch.float64)
            loss = (
                model(data.to(ctx.device, ctx.dtype).chunk(cp_size)[cp_rank]).square().sum()
                / data.numel()
            )
            ctx.loss(loss)
            loss.backward()
            for parameter in model.norm.parameters():
                dist.all_reduce(parameter.grad, group=ctx.group("tp"))
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, group=ctx.group("cp"))
            optimizer.step()
            optimizer.zero_grad()
