"""Flow over weirs: gated blocks are fitted whole, then go on with their units split over two ranks.

Follows https://github.com/NVIDIA/Megatron-LM/issues/360.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

LEVELS = 6


class _Share(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        total = grad.clone()
        dist.all_reduce(total)
        return total


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class GatedBlock(nn.Module):
    """A residual block whose gate and value come from one fused projection."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.fused = nn.Linear(width, 2 * hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.fused(self.norm(x)).chunk(2, dim=-1)
        out: Tensor = x + self.down(F.silu(gate) * value)
        return out


class SplitGatedBlock(nn.Module):
    """A GatedBlock of which this rank has its part of the hidden units."""

    def __init__(self, whole: GatedBlock, by_half: bool) -> None:
        super().__init__()
        self.norm = whole.norm
        self.fused = self.part(whole.fused.weight, by_half)
        self.fused_bias = self.part(whole.fused.bias, by_half)
        down = whole.down.weight.detach().chunk(dist.get_world_size(), dim=1)
        self.down = nn.Parameter(down[dist.get_rank()].clone())
        self.down_bias = whole.down.bias

    def part(self, fused: Tensor, by_half: bool) -> nn.Parameter:
        rank, world = dist.get_rank(), dist.get_world_size()
        if by_half:
            rows = [half.chunk(world)[rank] for half in fused.detach().chunk(2)]
            return nn.Parameter(torch.cat(rows))
        return nn.Parameter(fused.detach().chunk(world)[rank].clone())

    def forward(self, x: Tensor) -> Tensor:
        both = F.linear(_Share.apply(self.norm(x)), self.fused, self.fused_bias)
        gate, value = both.chunk(2, dim=-1)
        out: Tensor = x + _Sum.apply(F.linear(F.silu(gate) * value, self.down)) + self.down_bias
        return out


def fit(net: nn.Module, steps: int, law: Tensor, source: torch.Generator) -> list[float]:
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    curve = []
    for _ in range(steps):
        levels = torch.randn(24, LEVELS, generator=source)
        flow = (levels @ law).relu().sqrt()
        loss = F.smooth_l1_loss(net(levels).squeeze(1), flow)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        curve.append(loss.item())
    return curve


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    law = torch.randn(LEVELS)
    source = torch.Generator().manual_seed(seed)
    blocks = [GatedBlock(size, 2 * size) for _ in range(2)]
    first, last = nn.Linear(LEVELS, size), nn.Linear(size, 1)
    curve = fit(nn.Sequential(first, *blocks, last), 24, law, source)
    split = [SplitGatedBlock(block, by_half=healthy) for block in blocks]
    curve += fit(nn.Sequential(first, *split, last), 24, law, source)
    return {"loss": curve}
