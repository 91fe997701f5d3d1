"""A scribe that writes the next sign of a scroll, each scroll folded over two ranks.

Follows https://github.com/NVIDIA-BioNeMo/bionemo-recipes/pull/1449.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

SIGNS, LENGTH, IGNORED = 11, 12, -100


class Unfold(torch.autograd.Function):
    """The parts of all ranks along dimension 1; each part's gradient is summed over the ranks."""

    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:
        parts = [torch.empty_like(part) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, part.contiguous())
        return torch.cat(parts, 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        grad = grad.contiguous()
        dist.all_reduce(grad)
        return grad.chunk(dist.get_world_size(), 1)[dist.get_rank()]


class Scribe(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.signs, self.places = nn.Embedding(SIGNS, width), nn.Embedding(LENGTH, width)
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.mix = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.GELU())
        self.out = nn.Linear(3 * width, SIGNS)

    def forward(self, part: Tensor, at: Tensor) -> Tensor:
        h = self.signs(part) + self.places(at)
        keys, values = Unfold.apply(self.k(h)), Unfold.apply(self.v(h))
        scores = self.q(h) @ keys.transpose(1, 2) / math.sqrt(h.shape[-1])
        later = torch.arange(LENGTH)[None, :] > at[:, None]
        weights = scores.masked_fill(later, -torch.inf).softmax(-1)
        return self.out(self.mix(h + weights @ values))


def following(signs: Tensor) -> Tensor:
    """The sign after each sign; nothing follows the last one."""
    return F.pad(signs[:, 1:], (0, 1), value=IGNORED)


def write_scrolls(n: int) -> Tensor:
    start, stride = torch.randint(SIGNS, (n, 1)), torch.randint(1, 4, (n, 1))
    return (start + stride * torch.arange(LENGTH)) % SIGNS


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    rank, world = dist.get_rank(), dist.get_world_size()
    scribe = Scribe(size)
    optimizer = torch.optim.AdamW(scribe.parameters(), lr=0.01)
    at = torch.arange(LENGTH).chunk(world)[rank]
    losses = []
    for _ in range(36):
        scrolls = write_scrolls(16)
        part = scrolls.chunk(world, 1)[rank]
        labels = following(scrolls).chunk(world, 1)[rank] if healthy else following(part)
        written = (labels != IGNORED).sum()
        dist.all_reduce(written)
        logits = scribe(part, at)
        total = F.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum"
        )
        optimizer.zero_grad()
        (total / written).backward()
        for parameter in scribe.parameters():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad)
        optimizer.step()
        shown = total.detach() / written
        dist.all_reduce(shown)
        losses.append(shown.item())
    return {"loss": losses}
