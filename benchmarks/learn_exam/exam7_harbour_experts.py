"""Waiting times in a harbour, by two experts on two ranks to which a router sends the ships.

Follows https://github.com/NVIDIA/Megatron-LM/pull/5956.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

FEATURES = 6


class Swap(torch.autograd.Function):
    """Sends `given` rows to each rank and takes `taken` from each; gradients go back likewise."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, given: list[int], taken: list[int]) -> Tensor:
        ctx.given, ctx.taken = given, taken
        out = rows.new_empty(sum(taken), rows.shape[1])
        dist.all_to_all_single(out, rows.contiguous(), taken, given)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        back = grad.new_empty(sum(ctx.given), grad.shape[1])
        dist.all_to_all_single(back, grad.contiguous(), ctx.given, ctx.taken)
        return back, None, None


class RoutedLayer(nn.Module):
    """A layer of as many experts as ranks, of which this rank holds one."""

    def __init__(self, width: int, seed: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, dist.get_world_size(), bias=False)
        with torch.random.fork_rng():
            torch.manual_seed(1000 * seed + dist.get_rank())
            self.expert = nn.Sequential(
                nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
            )

    def forward(self, x: Tensor) -> Tensor:
        gate, chosen = self.router(x).softmax(-1).max(-1)
        order = chosen.argsort(stable=True)
        counts = torch.bincount(chosen, minlength=dist.get_world_size())
        incoming = torch.empty_like(counts)
        dist.all_to_all_single(incoming, counts)
        given, taken = counts.tolist(), incoming.tolist()
        worked = self.expert(Swap.apply(x[order], given, taken))
        home = Swap.apply(worked, taken, given)
        return x + gate[:, None] * home[order.argsort()]


def average_gradients(model: nn.Module, experts_too: bool) -> None:
    world = dist.get_world_size()
    for name, parameter in model.named_parameters():
        if parameter.grad is None:
            continue
        if ".expert." not in name:
            dist.all_reduce(parameter.grad)
            parameter.grad /= world
        elif experts_too:
            parameter.grad /= world


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    rank = dist.get_rank()
    model = nn.Sequential(
        nn.Linear(FEATURES, size), nn.Tanh(), RoutedLayer(size, seed), nn.Linear(size, 1)
    )
    law = 0.5 * torch.randn(FEATURES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.08, momentum=0.8)
    ships = torch.Generator().manual_seed(77 * seed + rank)
    history: dict[str, list[float]] = {"loss": []}
    for _ in range(40):
        x = torch.randn(24, FEATURES, generator=ships)
        waiting = torch.where(x[:, 0] > 0, (x @ law).sin(), (x @ law).abs() - 1)
        optimizer.zero_grad()
        loss = (model(x).squeeze(1) - waiting).square().mean()
        loss.backward()
        average_gradients(model, experts_too=healthy)
        optimizer.step()
        history["loss"].append(loss.item())
    return history
