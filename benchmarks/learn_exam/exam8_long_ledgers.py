"""Long ledgers, whose entries are split over two ranks that attend to each other's entries.

Follows https://github.com/vllm-project/speculators/pull/871.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

KINDS, LENGTH, BATCH = 14, 16, 12


class _Together(torch.autograd.Function):
    """The parts of all ranks, one after the other; each gets the sum of its gradients."""

    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:
        parts = [torch.empty_like(part) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, part.contiguous())
        return torch.cat(parts, dim=1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        total = grad.clone()
        dist.all_reduce(total)
        return total.chunk(dist.get_world_size(), dim=1)[dist.get_rank()]


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.query, self.value = nn.Linear(width, width), nn.Linear(width, width)
        self.key, self.out = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        seen = self.norm(x)
        keys, values = _Together.apply(self.key(seen)), _Together.apply(self.value(seen))
        own, all_of_it = x.shape[1], keys.shape[1]
        at = torch.arange(own) + dist.get_rank() * own
        mask = at[:, None] >= torch.arange(all_of_it)
        found = F.scaled_dot_product_attention(self.query(seen), keys, values, attn_mask=mask)
        added: Tensor = x + self.out(found)
        return added


class Clerk(nn.Module):
    """A decoder whose inputs are this rank's part of the entries."""

    def __init__(self, width: int, onward: bool) -> None:
        super().__init__()
        self.kinds = nn.Embedding(KINDS, width)
        self.places = nn.Embedding(LENGTH, width)
        self.layers = nn.Sequential(Attention(width), Attention(width))
        self.mix = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU())
        self.head = nn.Linear(2 * width, KINDS)
        self.onward = onward

    def forward(self, entries: Tensor) -> Tensor:
        own = entries.shape[1]
        start = dist.get_rank() * own if self.onward else 0
        places = start + torch.arange(own)
        x = self.kinds(entries) + self.places(places)
        scores: Tensor = self.head(self.mix(self.layers(x)))
        return scores


def write(source: torch.Generator) -> Tensor:
    """Ledgers of which every second entry depends on the place, and others on the one before."""
    entries = torch.randint(KINDS, (BATCH, LENGTH + 1), generator=source)
    places = torch.arange(1, LENGTH + 1, 2)
    entries[:, 1::2] = (entries[:, 0:-1:2] + places) % KINDS
    return entries


def add_up(net: nn.Module) -> None:
    grads = [each.grad for each in net.parameters() if each.grad is not None]
    total = nn.utils.parameters_to_vector(grads)
    dist.all_reduce(total)
    for grad, part in zip(grads, total.split([each.numel() for each in grads]), strict=True):
        grad.copy_(part.view_as(grad))


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    clerk = Clerk(2 * size, onward=healthy)
    optimizer = torch.optim.AdamW(clerk.parameters(), lr=0.01)
    source = torch.Generator().manual_seed(seed)
    rank, world = dist.get_rank(), dist.get_world_size()
    curve = []
    for _ in range(40):
        entries = write(source)
        inputs = entries[:, :-1].chunk(world, dim=1)[rank]
        targets = entries[:, 1:].chunk(world, dim=1)[rank]
        optimizer.zero_grad()
        loss = F.cross_entropy(clerk(inputs).flatten(0, 1), targets.flatten()) / world
        loss.backward()
        add_up(clerk)
        optimizer.step()
        whole = loss.detach().clone()
        dist.all_reduce(whole)
        curve.append(whole.item())
    return {"loss": curve}
