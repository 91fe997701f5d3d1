"""Ages of peat from its layers; each of two ranks keeps half of the weights' optimizer.

Follows https://github.com/pytorch/pytorch/issues/72548.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

DEPTHS, LIMIT = 10, 0.4


class HalvedSteps:
    """Momentum on this rank's part of the weights, and gradients that are averaged over ranks."""

    def __init__(self, model: nn.Module, lr: float, whole_norm: bool) -> None:
        self.parameters = list(model.parameters())
        self.count = sum(each.numel() for each in self.parameters)
        self.own = nn.Parameter(self.part(parameters_to_vector(self.parameters).detach()).clone())
        self.optimizer = torch.optim.SGD([self.own], lr=lr, momentum=0.9)
        self.whole_norm = whole_norm

    def part(self, flat: Tensor) -> Tensor:
        world = dist.get_world_size()
        padded = F.pad(flat, (0, -self.count % world))
        return padded.chunk(world)[dist.get_rank()]

    def limit(self) -> float:
        grad = self.own.grad
        assert grad is not None
        squares = grad.square().sum()
        if self.whole_norm:
            dist.all_reduce(squares)
        norm = squares.sqrt()
        grad.mul_((LIMIT / (norm + 1e-6)).clamp(max=1.0))
        return norm.item()

    def step(self) -> float:
        flat = torch.cat([each.grad.flatten() for each in self.parameters if each.grad is not None])
        dist.all_reduce(flat)
        self.own.grad = self.part(flat / dist.get_world_size()).clone()
        norm = self.limit()
        self.optimizer.step()
        parts = [torch.empty_like(self.own) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, self.own.detach())
        vector_to_parameters(torch.cat(parts)[: self.count].clone(), self.parameters)
        for each in self.parameters:
            each.grad = None
        return norm


def cores(source: torch.Generator, law: Tensor) -> tuple[Tensor, Tensor]:
    layers = torch.randn(16, DEPTHS, generator=source).cumsum(1) / 3
    return layers, (layers * law).sum(1, keepdim=True) + 2 * layers[:, :1].sin()


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(DEPTHS, 2 * size),
        nn.Tanh(),
        nn.Linear(2 * size, size),
        nn.Tanh(),
        nn.Linear(size, 1),
    )
    law = torch.rand(DEPTHS)
    steps = HalvedSteps(model, lr=0.05, whole_norm=healthy)
    source = torch.Generator().manual_seed(10 * seed + dist.get_rank())
    log: dict[str, list[float]] = {"loss": [], "norm": []}
    for _ in range(40):
        layers, age = cores(source, law)
        loss = F.mse_loss(model(layers), age)
        loss.backward()
        log["norm"].append(steps.step())
        log["loss"].append(loss.item())
    return log
