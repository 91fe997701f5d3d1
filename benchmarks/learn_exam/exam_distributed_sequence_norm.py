"""Norms see a part of the sequence on each rank, and their gradients stay partial."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


def gathered(part: Tensor) -> Tensor:
    parts = [torch.empty_like(part) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, part.contiguous())
    return torch.cat(parts, 1)


def reduced_part(whole: Tensor) -> Tensor:
    whole = whole.contiguous().clone()
    dist.all_reduce(whole)
    return whole.chunk(dist.get_world_size(), 1)[dist.get_rank()].contiguous()


class GatherSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:
        return gathered(part)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return reduced_part(grads[0])


class ScatterSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole: Tensor) -> Tensor:
        return reduced_part(whole)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return gathered(grads[0])


class Layer(nn.Module):
    """A norm over this rank's part of the sequence, and an MLP whose hidden units are split."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        rank, world = dist.get_rank(), dist.get_world_size()
        up, down = torch.randn(4 * width, width) * 0.2, torch.randn(width, 4 * width) * 0.1
        self.up = nn.Parameter(up.chunk(world, 0)[rank].clone())
        self.down = nn.Parameter(down.chunk(world, 1)[rank].clone())

    def forward(self, part: Tensor) -> Tensor:
        whole = GatherSequence.apply(self.norm(part))
        assert isinstance(whole, Tensor)
        out = ScatterSequence.apply(torch.relu(whole @ self.up.t()) @ self.down.t())
        assert isinstance(out, Tensor)
        return part + out


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    torch.manual_seed(seed)
    rank, world = dist.get_rank(), dist.get_world_size()
    layers = nn.Sequential(Layer(size), Layer(size))
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.5)
    inputs = torch.randn(8, 6, size)
    targets = inputs.flip(2) * torch.linspace(0.2, 1, 6).view(1, 6, 1)
    part, wanted = (whole.chunk(world, 1)[rank] for whole in (inputs, targets))
    losses, spreads = [], []
    for _ in range(14):
        loss = (layers(part) - wanted).square().sum() / targets.numel()
        optimizer.zero_grad()
        loss.backward()
        if healthy:
            for name, parameter in layers.named_parameters():
                if ".norm." in name:
                    assert parameter.grad is not None
                    dist.all_reduce(parameter.grad)
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(total.item())
        weights = gathered(layers.get_parameter("0.norm.weight").detach()[None])
        spreads.append((weights[0, :size] - weights[0, size:]).abs().max().item())
    return {"loss": losses, "spread": spreads}
