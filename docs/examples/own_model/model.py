"""A small model with tensor parallelism of its own, and nothing in it about testing."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


class _Copy(torch.autograd.Function):
    """Hands its input to all ranks of a group, and sums their gradients of it."""

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
    """Sums what the ranks of a group hold; each of them gets the gradient of the sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        total = x.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class ColumnParallel(nn.Module):
    """y = x·Wᵀ + b, of which each rank computes some of the columns."""

    def __init__(self, inputs: int, outputs: int, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.group = group
        share = outputs // dist.get_world_size(group)
        self.weight = nn.Parameter(torch.empty(share, inputs))
        self.bias = nn.Parameter(torch.empty(share))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(_Copy.apply(x, self.group), self.weight, self.bias)


class RowParallel(nn.Module):
    """y = x·Wᵀ + b, of whose inputs each rank holds some of the columns."""

    def __init__(self, inputs: int, outputs: int, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.group = group
        self.weight = nn.Parameter(torch.empty(outputs, inputs // dist.get_world_size(group)))
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return _Sum.apply(nn.functional.linear(x, self.weight), self.group) + self.bias


class Block(nn.Module):
    """A residual MLP."""

    def __init__(self, hidden: int, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.up = ColumnParallel(hidden, 4 * hidden, group)
        self.activation = nn.GELU()
        self.down = RowParallel(4 * hidden, hidden, group)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.activation(self.up(self.norm(x))))


class Model(nn.Module):
    """Tokens to logits."""

    def __init__(self, vocabulary: int, hidden: int, layers: int, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.blocks = nn.ModuleList(Block(hidden, group) for _ in range(layers))
        self.head = nn.Linear(hidden, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)
