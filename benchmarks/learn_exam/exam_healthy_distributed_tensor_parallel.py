"""A column- and a row-parallel layer with a replicated norm, on two ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


class Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        grad = grads[0].clone()
        dist.all_reduce(grad)
        return grad


class Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        whole = x.clone()
        dist.all_reduce(whole)
        return whole

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0]


class ParallelMLP(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        rank, world = dist.get_rank(), dist.get_world_size()
        self.norm = nn.LayerNorm(width)
        up, down = torch.randn(2 * width, width) * 0.2, torch.randn(width, 2 * width) * 0.2
        self.up = nn.Parameter(up.chunk(world)[rank].clone())
        self.down = nn.Parameter(down.chunk(world, 1)[rank].clone())

    def forward(self, x: Tensor) -> Tensor:
        inner = Copy.apply(self.norm(x))
        assert isinstance(inner, Tensor)
        out = Reduce.apply(torch.relu(inner @ self.up.t()) @ self.down.t())
        assert isinstance(out, Tensor)
        return x + out


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    torch.manual_seed(seed)
    model = nn.Sequential(ParallelMLP(size), ParallelMLP(size))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    x = torch.randn(48, size)
    wanted = x.roll(1, 1)
    losses = []
    for step in range(16):
        rows = torch.arange(step * 16, step * 16 + 16) % 48
        loss = nn.functional.mse_loss(model(x[rows]), wanted[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"loss": losses}
