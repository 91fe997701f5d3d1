"""Delays of ferries in two ports: each rank makes steps of its own, and they meet now and then."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

ROUNDS, OWN_STEPS = 10, 4


@torch.no_grad()
def meet(optimizer: torch.optim.Optimizer) -> None:
    """The weights and the momentum of all ranks become their mean."""
    for group in optimizer.param_groups:
        for weight in group["params"]:
            for part in (weight, optimizer.state[weight]["momentum_buffer"]):
                dist.all_reduce(part)
                part /= dist.get_world_size()


def day(port: torch.Generator, wind: Tensor, shift: float) -> tuple[Tensor, Tensor]:
    weather = torch.randn(16, 5, generator=port) + shift
    return weather, (weather @ wind).relu() + 0.1 * torch.randn(16, generator=port)


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    rank = dist.get_rank()
    net = nn.Sequential(nn.Linear(5, size), nn.Tanh(), nn.Linear(size, size), nn.Tanh())
    net.append(nn.Linear(size, 1))
    wind = torch.randn(5)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.03, momentum=0.8)
    port = torch.Generator().manual_seed(9 * seed + rank)
    delays = []
    for _ in range(ROUNDS):
        for _ in range(OWN_STEPS):
            weather, delay = day(port, wind, shift=0.3 * rank)
            optimizer.zero_grad()
            loss = nn.functional.huber_loss(net(weather).squeeze(1), delay)
            loss.backward()
            optimizer.step()
            delays.append(loss.item())
        meet(optimizer)
    return {"loss": delays}
