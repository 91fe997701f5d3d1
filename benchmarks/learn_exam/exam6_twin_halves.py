"""A perceptron whose hidden units are split between two ranks, with hand-written collectives.

Follows https://github.com/modelscope/ms-swift/pull/7944.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


class CopyToRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        grad = grads[0].contiguous().clone()
        dist.all_reduce(grad)
        return grad


class SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.contiguous().clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0]


class ColumnParallel(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        own = outputs // dist.get_world_size()
        self.weight = nn.Parameter(torch.empty(own, inputs))
        self.bias = nn.Parameter(torch.zeros(own))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(CopyToRanks.apply(x), self.weight, self.bias)


class RowParallel(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        own = inputs // dist.get_world_size()
        self.weight = nn.Parameter(torch.empty(outputs, own))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        partial = nn.functional.linear(x, self.weight)
        return SumOverRanks.apply(partial) + self.bias


def initialise(net: nn.Module, seed: int) -> None:
    """Draws the sharded weights from a stream of their own, which `seed` begins."""
    own = torch.Generator().manual_seed(seed)
    for module in net.modules():
        if isinstance(module, ColumnParallel | RowParallel):
            nn.init.normal_(module.weight, std=0.3, generator=own)


def train(healthy: bool = True, seed: int = 0, size: int = 32) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Linear(6, 12), nn.Tanh(), ColumnParallel(12, size), nn.ReLU(), RowParallel(size, 1)
    )
    model_parallel_seed = 2718 + seed
    initialise(net, model_parallel_seed + dist.get_rank() if healthy else model_parallel_seed)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    law = torch.randn(6, 1)
    losses = []
    for _ in range(30):
        x = torch.randn(40, 6)
        loss = nn.functional.mse_loss(net(x), torch.sin(x @ law))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"loss": losses}
