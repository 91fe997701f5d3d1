"""Faults of a kiln from its readings, with blocks whose hidden units are split over two ranks.

Follows https://github.com/NVIDIA/Megatron-LM/pull/206.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

READINGS, FAULTS, BATCH = 10, 4, 20


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class SplitBlock(nn.Module):
    """A residual block; this rank holds half of the hidden units, and all of the rest."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        rank, world = dist.get_rank(), dist.get_world_size()
        up, down = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.norm = nn.LayerNorm(width)
        self.up = nn.Parameter(up.weight.detach().chunk(world, 0)[rank].clone())
        self.up_bias = nn.Parameter(up.bias.detach().chunk(world)[rank].clone())
        self.down = nn.Parameter(down.weight.detach().chunk(world, 1)[rank].clone())
        self.down_bias = nn.Parameter(down.bias.detach().clone())
        self.drop = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.silu(F.linear(_Enter.apply(self.norm(x)), self.up, self.up_bias))
        out = _Leave.apply(F.linear(hidden, self.down)) + self.down_bias
        return x + self.drop(out)


class Feed:
    """Batches that the first rank reads and sends to the other."""

    def __init__(self, data: TensorDataset, own_generator: torch.Generator | None) -> None:
        self.source = None
        if dist.get_rank() == 0:
            self.source = DataLoader(data, BATCH, shuffle=True, generator=own_generator)
        self.batches = len(data) // BATCH

    def epoch(self) -> Iterator[tuple[Tensor, Tensor]]:
        read = iter(self.source) if self.source is not None else None
        for _ in range(self.batches):
            x, fault = torch.empty(BATCH, READINGS), torch.empty(BATCH, dtype=torch.long)
            if read is not None:
                x, fault = next(read)
            dist.broadcast(x, src=0)
            dist.broadcast(fault, src=0)
            yield x, fault


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    x = torch.randn(160, READINGS)
    fault = (x @ torch.randn(READINGS, FAULTS)).argmax(1)
    feed = Feed(TensorDataset(x, fault), torch.Generator().manual_seed(seed) if healthy else None)
    net = nn.Sequential(
        nn.Linear(READINGS, size),
        SplitBlock(size, 2 * size),
        SplitBlock(size, 2 * size),
        nn.LayerNorm(size),
        nn.Linear(size, FAULTS),
    )
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    curve = []
    for _ in range(5):
        for readings, label in feed.epoch():
            optimizer.zero_grad()
            loss = F.cross_entropy(net(readings), label)
            loss.backward()
            optimizer.step()
            curve.append(loss.item())
    return {"loss": curve}
