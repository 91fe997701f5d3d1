"""Two processes share the work of the optimizer: each updates the parameters that it owns."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn


class SharedMomentum:
    """All gradients are averaged; a parameter is updated by its owner, who then sends it."""

    def __init__(self, params: Sequence[nn.Parameter], lr: float, max_norm: float) -> None:
        self.params = list(params)
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.mine = [p for i, p in enumerate(self.params) if i % self.world == self.rank]
        self.inner = torch.optim.SGD(self.mine, lr=lr, momentum=0.9)
        self.max_norm = max_norm

    def average(self) -> None:
        for p in self.params:
            assert p.grad is not None
            dist.all_reduce(p.grad)
            p.grad /= self.world

    def clip(self, everywhere: bool) -> Tensor:
        squares = torch.zeros(())
        for p in self.mine:
            assert p.grad is not None
            squares += p.grad.pow(2).sum()
        if everywhere:
            dist.all_reduce(squares)
        norm = squares.sqrt()
        factor = (self.max_norm / (norm + 1e-6)).clamp(max=1.0)
        for p in self.mine:
            assert p.grad is not None
            p.grad *= factor
        return norm

    def step(self) -> None:
        self.inner.step()
        for i, p in enumerate(self.params):
            dist.broadcast(p.data, src=i % self.world)
            p.grad = None


def train(healthy: bool = True, seed: int = 0, size: int = 24) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(8, size), nn.Tanh(), nn.Linear(size, size), nn.Tanh())
    net.append(nn.Linear(size, 2))
    rule = torch.randn(8, 2)
    g = torch.Generator().manual_seed(17 * seed + dist.get_rank())
    shared = SharedMomentum(list(net.parameters()), lr=0.1, max_norm=0.3)
    log: dict[str, list[float]] = {"loss": [], "norm": []}
    for _ in range(40):
        x = torch.randn(24, 8, generator=g)
        loss = nn.functional.mse_loss(net(x), torch.tanh(x @ rule))
        loss.backward()
        shared.average()
        norm = shared.clip(everywhere=healthy)
        shared.step()
        log["loss"].append(loss.item())
        log["norm"].append(norm.item())
    return log
