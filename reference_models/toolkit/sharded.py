"""Tensor-parallel layers, whose parameters have Megatron-LM's attributes."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F


class _Enter(torch.autograd.Function):
    """The identity in the forward; the backward sums the gradient over the ranks."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        summed = grads[0].contiguous().clone()
        dist.all_reduce(summed, group=ctx.group)
        return summed, None


class _Leave(torch.autograd.Function):
    """The sum over the ranks in the forward; the backward does not change the gradient."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
        summed = tensor.contiguous().clone()
        dist.all_reduce(summed, group=group)
        return summed

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


def mark(parameter: nn.Parameter, sharded: bool, dim: int = -1) -> nn.Parameter:
    """Set the attributes that say whether tp ranks hold shards of a parameter; return it.

    `dim` is the sharded dimension.  If `sharded` is False, every rank holds the whole parameter.
    """
    parameter.tensor_model_parallel = sharded  # type: ignore[attr-defined]
    parameter.partition_dim = dim if sharded else -1  # type: ignore[attr-defined]
    return parameter


class ShardedMLP(nn.Module):
    """Two linear layers whose hidden features are divided among the ranks of a group.

    Every rank draws the same whole weights and keeps its part of them.
    """

    def __init__(self, width: int, hidden: int, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.group = group
        ranks, me = dist.get_world_size(group), dist.get_rank(group)
        up, down = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.up = mark(nn.Parameter(up.weight.chunk(ranks, 0)[me].detach().clone()), True, 0)
        self.up_bias = mark(nn.Parameter(up.bias.chunk(ranks, 0)[me].detach().clone()), True, 0)
        self.down = mark(nn.Parameter(down.weight.chunk(ranks, 1)[me].detach().clone()), True, 1)
        self.down_bias = mark(nn.Parameter(down.bias.detach().clone()), False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the output of the MLP, which is the same on every rank."""
        entered: Tensor = _Enter.apply(inputs, self.group)  # type: ignore[no-untyped-call]
        hidden = F.gelu(F.linear(entered, self.up, self.up_bias))
        partial = F.linear(hidden, self.down)
        left: Tensor = _Leave.apply(partial, self.group)  # type: ignore[no-untyped-call]
        return left + self.down_bias


def replicated(module: nn.Module) -> nn.Module:
    """Mark the parameters of a module as whole on every tp rank, except those already marked."""
    for parameter in module.parameters():
        if not hasattr(parameter, "tensor_model_parallel"):
            mark(parameter, False)
    return module
