"""A net whose hidden layer is split by columns and rows over two ranks."""

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
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        gradient = gradients[0].clone()
        dist.all_reduce(gradient)
        return gradient


class SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


class ColumnwiseLinear(nn.Module):
    def __init__(self, whole: nn.Linear, rank: int, ranks: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(whole.weight.detach().chunk(ranks)[rank].clone())
        self.bias = nn.Parameter(whole.bias.detach().chunk(ranks)[rank].clone())

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(CopyToRanks.apply(x), self.weight, self.bias)


class RowwiseLinear(nn.Module):
    """Sums the ranks' parts; each rank holds the whole bias."""

    def __init__(self, whole: nn.Linear, rank: int, ranks: int, bias_in_parts: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(whole.weight.detach().chunk(ranks, dim=1)[rank].clone())
        self.bias = nn.Parameter(whole.bias.detach().clone())
        self.ranks = ranks
        self.bias_in_parts = bias_in_parts

    def forward(self, x: Tensor) -> Tensor:
        if self.bias_in_parts:
            part = nn.functional.linear(x, self.weight, self.bias / self.ranks)
            summed: Tensor = SumOverRanks.apply(part)
            return summed
        product: Tensor = SumOverRanks.apply(nn.functional.linear(x, self.weight))
        return product + self.bias


def split_net(width: int, bias_in_parts: bool) -> nn.Sequential:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    up, down, out = nn.Linear(6, 2 * width), nn.Linear(2 * width, width), nn.Linear(width, 1)
    return nn.Sequential(
        ColumnwiseLinear(up, rank, ranks),
        nn.GELU(),
        RowwiseLinear(down, rank, ranks, bias_in_parts),
        nn.Tanh(),
        out,
    )


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    net = split_net(size, bias_in_parts=not healthy)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.8)
    losses = []
    for _ in range(32):
        rows = torch.randn(32, 6)
        wanted = rows[:, :2].prod(1, keepdim=True) + rows[:, 2:3] + 1
        loss = nn.functional.mse_loss(net(rows), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"loss": losses}
