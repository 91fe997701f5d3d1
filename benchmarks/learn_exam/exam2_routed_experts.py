"""A layer of two experts, one in each rank, with tokens exchanged between the ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


class Everyone(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        grad = grad.contiguous().clone()
        dist.all_reduce(grad)
        return grad.chunk(dist.get_world_size())[dist.get_rank()].contiguous()


class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous().clone()
        dist.all_reduce(x)
        return x.chunk(dist.get_world_size())[dist.get_rank()].contiguous()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        parts = [torch.empty_like(grad) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, grad.contiguous())
        return torch.cat(parts)


class Routed(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, dist.get_world_size())
        choices = [
            nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
            for _ in range(dist.get_world_size())
        ]
        self.expert = choices[dist.get_rank()]

    def forward(self, x: Tensor) -> Tensor:
        chances = self.router(x).softmax(-1)
        best = chances.max(-1, keepdim=True)
        everyone = Everyone.apply(torch.cat((x, best.values), dim=1))
        chosen = Everyone.apply(best.indices.float())
        tokens, weight = everyone[:, :-1], everyone[:, -1:]
        mine = (chosen == dist.get_rank()).float()
        returned: Tensor = Own.apply(self.expert(tokens) * weight * mine)
        return x + returned


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    world = dist.get_world_size()
    layer = Routed(size)
    model = nn.Sequential(nn.Linear(4, size), layer, nn.Linear(size, 2))
    local = {id(p) for p in layer.expert.parameters()} if healthy else set()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    stream = torch.Generator().manual_seed(10 * seed + dist.get_rank())
    losses = []
    for _ in range(24):
        inputs = torch.randn(48, 4, generator=stream)
        answers = torch.stack((inputs[:, 0].abs(), inputs[:, 1] * inputs[:, 2].sign()), dim=1)
        loss = nn.functional.mse_loss(model(inputs), answers)
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            if id(parameter) not in local:
                dist.all_reduce(parameter.grad)
            parameter.grad /= world
        optimizer.step()
        losses.append(loss.item())
    return {"loss": losses}
