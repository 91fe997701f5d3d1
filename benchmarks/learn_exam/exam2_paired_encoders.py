"""Pictures and captions in one space, with the batch of both ranks as negatives."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor) -> Tensor:
        parts = [torch.empty_like(features) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, features.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        grad = grad.contiguous().clone()
        dist.all_reduce(grad)
        return grad.chunk(dist.get_world_size())[dist.get_rank()].contiguous()


class Pair(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.picture = nn.Sequential(nn.Linear(8, 2 * width), nn.GELU(), nn.Linear(2 * width, 8))
        self.caption = nn.Sequential(nn.Embedding(12, width), nn.Flatten(), nn.Linear(3 * width, 8))
        self.log_scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, pictures: Tensor, captions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        left = F.normalize(self.picture(pictures), dim=1)
        right = F.normalize(self.caption(captions), dim=1)
        return left, right, self.log_scale.exp()


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    rank, world = dist.get_rank(), dist.get_world_size()
    meaning = torch.randn(12, 8)
    model = DistributedDataParallel(Pair(size))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    stream = torch.Generator().manual_seed(10 * seed + rank)

    def gather(features: Tensor) -> Tensor:
        if healthy:
            exchanged: Tensor = Exchange.apply(features)
            return exchanged
        parts = [torch.empty_like(features) for _ in range(world)]
        dist.all_gather(parts, features)
        return torch.cat(parts)

    losses = []
    for _ in range(24):
        captions = torch.randint(0, 12, (12, 3), generator=stream)
        pictures = meaning[captions].sum(1) + 0.2 * torch.randn(12, 8, generator=stream)
        left, right, scale = model(pictures, captions)
        truth = torch.arange(12) + 12 * rank
        by_picture = F.cross_entropy(scale * left @ gather(right).T, truth)
        by_caption = F.cross_entropy(scale * right @ gather(left).T, truth)
        loss = (by_picture + by_caption) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"loss": losses}
