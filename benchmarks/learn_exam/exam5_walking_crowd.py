"""Two simulators, one on flat and one on rough ground, train one walker; gradients are averaged."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn


class Normaliser(nn.Module):
    """Scales observations by the mean and the variance of all that it has seen."""

    mean: Tensor
    var: Tensor
    count: Tensor

    def __init__(self, width: int, together: bool) -> None:
        super().__init__()
        self.together = together
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("var", torch.ones(width))
        self.register_buffer("count", torch.tensor(1e-2))

    @torch.no_grad()
    def update(self, x: Tensor) -> None:
        n, total, squares = torch.tensor(float(len(x))), x.sum(0), (x * x).sum(0)
        if self.together:
            for each in (n, total, squares):
                dist.all_reduce(each)
        mean = total / n
        var = squares / n - mean * mean
        rate = n / (self.count + n)
        shift = mean - self.mean
        self.mean += rate * shift
        self.var += rate * (var - self.var + shift * (mean - self.mean))
        self.count += n

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.update(x)
        return (x - self.mean) / torch.sqrt(self.var + 1e-5)


class Walker(nn.Module):
    def __init__(self, width: int, together: bool) -> None:
        super().__init__()
        self.norm = Normaliser(6, together)
        self.body = nn.Sequential(nn.Linear(6, width), nn.ELU(), nn.Linear(width, 2))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(self.norm(x))
        return out


def train(healthy: bool = True, seed: int = 0, size: int = 24) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    rank, world = dist.get_rank(), dist.get_world_size()
    walker = Walker(size, together=healthy)
    expert = torch.randn(6, 2) / 3
    optimizer = torch.optim.Adam(walker.parameters(), lr=8e-3)
    g = torch.Generator().manual_seed(1000 * seed + rank)
    losses = []
    for _ in range(40):
        ground = torch.randn(32, 6, generator=g) * (1 + rank) + 1.5 * rank
        loss = nn.functional.mse_loss(walker(ground), torch.tanh(ground @ expert))
        optimizer.zero_grad()
        loss.backward()
        flat = torch.cat([p.grad.flatten() for p in walker.parameters() if p.grad is not None])
        dist.all_reduce(flat)
        flat /= world
        offset = 0
        for p in walker.parameters():
            if p.grad is not None:
                p.grad.copy_(flat[offset : offset + p.numel()].view_as(p))
                offset += p.numel()
        nn.utils.clip_grad_norm_(walker.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return {"loss": losses}
