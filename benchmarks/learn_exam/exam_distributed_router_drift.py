"""Each rank computes one expert, so the router's gradient is partial, and nobody adds it up."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


class SumOverRanks(torch.autograd.Function):
    """Adds up the outputs of all ranks; the gradient of the sum is that of each output."""

    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:
        whole = part.clone()
        dist.all_reduce(whole)
        return whole

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0]


class MoE(nn.Module):
    """A router that every rank has, and the one expert of this rank."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, dist.get_world_size(), bias=False)
        experts = [nn.Linear(width, width) for _ in range(dist.get_world_size())]
        self.expert = experts[dist.get_rank()]

    def forward(self, tokens: Tensor) -> Tensor:
        score = self.router(tokens).softmax(-1)[:, dist.get_rank()].unsqueeze(1)
        out = SumOverRanks.apply(score * self.expert(tokens))
        assert isinstance(out, Tensor)
        return out


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    torch.manual_seed(seed)
    layer = MoE(size)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-2)
    tokens = torch.randn(64, size)
    wanted = torch.where(tokens[:, :1] > 0, tokens, -tokens.flip(1))
    losses, differences = [], []
    for _ in range(20):
        loss = nn.functional.mse_loss(layer(tokens), wanted)
        optimizer.zero_grad()
        loss.backward()
        grad = layer.router.weight.grad
        assert grad is not None
        if healthy:
            dist.all_reduce(grad)
        optimizer.step()
        losses.append(loss.item())
        first = layer.router.weight.detach().clone()
        dist.broadcast(first, 0)
        distance = (first - layer.router.weight.detach()).abs().max()
        dist.all_reduce(distance, dist.ReduceOp.MAX)
        differences.append(distance.item())
    return {"loss": losses, "difference": differences}
