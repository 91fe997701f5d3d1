"""Tensor-parallel layers and the sum of gradients, which the programs of this folder share.

The layers follow the scheme of Megatron-LM (Shoeybi et al., 2019): a linear layer that is cut by
columns, one that is cut by rows, and an embedding that is cut by words.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn


class _Copy(torch.autograd.Function):
    """Hands x to all ranks of a group; its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        grad = grad.clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class _Sum(torch.autograd.Function):
    """The sum of what the ranks of a group hold; each rank gets the gradient of the sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        total = x.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


def own_part(whole: Tensor, dim: int, group: dist.ProcessGroup) -> Tensor:
    """The part of a whole tensor that this rank holds."""
    return whole.chunk(dist.get_world_size(group), dim)[dist.get_rank(group)]


class ColumnParallel(nn.Module):
    """A linear layer; each rank computes some of its outputs."""

    def __init__(
        self, inputs: int, outputs: int, group: dist.ProcessGroup, bias: bool = True
    ) -> None:
        super().__init__()
        self.group = group
        share = outputs // dist.get_world_size(group)
        self.weight = nn.Parameter(torch.empty(share, inputs))
        self.bias = nn.Parameter(torch.empty(share)) if bias else None

    def load(self, weight: Tensor, bias: Tensor) -> None:
        """Take this rank's part of whole initial values."""
        with torch.no_grad():
            self.weight.copy_(own_part(weight, 0, self.group))
            if self.bias is not None:
                self.bias.copy_(own_part(bias, 0, self.group))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(_Copy.apply(x, self.group), self.weight, self.bias)


class RowParallel(nn.Module):
    """A linear layer; each rank holds some of its inputs, and all get the whole output."""

    def __init__(self, inputs: int, outputs: int, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.group = group
        self.weight = nn.Parameter(torch.empty(outputs, inputs // dist.get_world_size(group)))
        self.bias = nn.Parameter(torch.empty(outputs))

    def load(self, weight: Tensor, bias: Tensor) -> None:
        """Take this rank's part of whole initial values."""
        with torch.no_grad():
            self.weight.copy_(own_part(weight, 1, self.group))
            self.bias.copy_(bias)

    def forward(self, x: Tensor) -> Tensor:
        return _Sum.apply(F.linear(x, self.weight), self.group) + self.bias


class VocabularyParallel(nn.Module):
    """An embedding; each rank holds the vectors of some of the words."""

    def __init__(self, words: int, hidden: int, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.group = group
        self.share = words // dist.get_world_size(group)
        self.first = self.share * dist.get_rank(group)
        self.weight = nn.Parameter(torch.empty(self.share, hidden))

    def forward(self, tokens: Tensor) -> Tensor:
        local = tokens - self.first
        absent = (local < 0) | (local >= self.share)
        vectors = F.embedding(local.masked_fill(absent, 0), self.weight)
        return _Sum.apply(vectors.masked_fill(absent[..., None], 0.0), self.group)


class ParallelMLP(nn.Module):
    """Two linear layers, the first cut by columns and the second by rows."""

    def __init__(self, inputs: int, inner: int, outputs: int, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.up = ColumnParallel(inputs, inner, group)
        self.activation = nn.GELU()
        self.down = RowParallel(inner, outputs, group)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.up(x)))


#: The layouts of a ParallelMLP.
MLP_PARAMETERS = {
    "up.weight": {"tp_dim": 0},
    "up.bias": {"tp_dim": 0},
    "down.weight": {"tp_dim": 1},
}
MLP_MODULES = {"up": {"output": {"tp_dim": -1}}, "activation": {"output": {"tp_dim": -1}}}
MLP_LAYOUTS = {"parameters": MLP_PARAMETERS, "modules": MLP_MODULES}


def sum_gradients(model: nn.Module, group: dist.ProcessGroup) -> None:
    """Sum the gradients of all parameters over a group."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad, group=group)
