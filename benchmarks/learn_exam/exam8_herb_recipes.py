"""Recipes with herbs, of unequal lengths, in a decoder whose layers are sharded over two ranks.

Follows https://github.com/ChenmienTan/RL2/issues/11.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

HERBS, LONGEST, NONE = 16, 10, -100


class Mixing(nn.Module):
    """Each place gets the mean of those before it, through two layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner, self.outer = nn.Linear(2 * width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        seen = self.norm(x)
        places = torch.arange(1, x.shape[1] + 1).view(1, -1, 1)
        before = seen.cumsum(1) / places
        added: Tensor = x + self.outer(F.gelu(self.inner(torch.cat([seen, before], -1))))
        return added


class Cook(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.herbs = nn.Embedding(HERBS, width)
        self.layers = nn.ModuleList(Mixing(width) for _ in range(2))
        self.head = nn.Linear(width, HERBS)

    def forward(self, herbs: Tensor) -> Tensor:
        x = self.herbs(herbs)
        for layer in self.layers:
            x = layer(x)
        scores: Tensor = self.head(x.flatten(0, 1))
        return scores


def recipes(source: torch.Generator, turn: Tensor) -> tuple[Tensor, Tensor]:
    """Herbs that follow each other by a rule, and what comes next until a recipe's own end."""
    herbs = [torch.randint(HERBS, (8,), generator=source)]
    for _ in range(LONGEST):
        herbs.append(turn[herbs[-1]])
    whole = torch.stack(herbs, 1)
    lengths = torch.randint(2, LONGEST + 1, (8, 1), generator=source)
    following = whole[:, 1:].masked_fill(torch.arange(LONGEST) >= lengths, NONE)
    return whole[:, :-1], following


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    cook = Cook(size)
    turn = torch.randperm(HERBS)
    for layer in cook.layers:
        fully_shard(layer)
    fully_shard(cook)
    optimizer = torch.optim.SGD(cook.parameters(), lr=0.25, momentum=0.9)
    source = torch.Generator().manual_seed(50 * seed + dist.get_rank())
    curve = []
    for _ in range(36):
        herbs, following = recipes(source, turn)
        known = (following != NONE).sum()
        dist.all_reduce(known)
        scores = cook(herbs)
        total = F.cross_entropy(scores, following.flatten(), ignore_index=NONE, reduction="sum")
        loss = total / known
        shown = loss.detach().clone()
        if healthy:
            loss = loss * dist.get_world_size()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        dist.all_reduce(shown)
        curve.append(shown.item())
    return {"loss": curve}
