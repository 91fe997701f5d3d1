"""A feed-forward block whose hidden units are split over two ranks, between replicated layers."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


class Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        grad = grad.contiguous().clone()
        dist.all_reduce(grad)
        return grad


class Collect(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class SplitMLP(nn.Module):
    def __init__(self, width: int, healthy: bool) -> None:
        super().__init__()
        rank, world = dist.get_rank(), dist.get_world_size()
        whole_in, whole_out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width, bias=False)
        self.weight_in = nn.Parameter(whole_in.weight.detach().chunk(world, 0)[rank].clone())
        self.bias_in = nn.Parameter(whole_in.bias.detach().chunk(world, 0)[rank].clone())
        self.weight_out = nn.Parameter(whole_out.weight.detach().chunk(world, 1)[rank].clone())
        self.bias_out = nn.Parameter(torch.zeros(width))
        self.healthy = healthy

    def forward(self, x: Tensor) -> Tensor:
        if self.healthy:
            x = Spread.apply(x)
        hidden = nn.functional.gelu(nn.functional.linear(x, self.weight_in, self.bias_in))
        total: Tensor = Collect.apply(nn.functional.linear(hidden, self.weight_out))
        return total + self.bias_out


class Classifier(nn.Module):
    def __init__(self, words: int, width: int, healthy: bool) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(words, width), nn.LayerNorm(width)
        self.mlp = SplitMLP(width, healthy)
        self.out = nn.Linear(width, words)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids).sum(1)
        x = x + self.mlp(self.norm(x))
        scores: Tensor = self.out(x)
        return scores


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = Classifier(10, size, healthy)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    stream = torch.Generator().manual_seed(seed)
    losses = []
    for _ in range(22):
        ids = torch.randint(0, 10, (32, 2), generator=stream)
        loss = nn.functional.cross_entropy(model(ids), ids.max(1).values)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    table = model.embed.weight.detach()
    largest, smallest = table.clone(), table.clone()
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    dist.all_reduce(smallest, op=dist.ReduceOp.MIN)
    return {"loss": losses, "spread": [(largest - smallest).max().item()]}
