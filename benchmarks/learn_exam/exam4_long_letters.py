"""Reads long letters that are cut in two: each process holds the keys of one half."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn as nn
from torch import Tensor


class GatherHalves(torch.autograd.Function):
    """Joins the halves along the sequence; gradients go back to the half that they belong to."""

    @staticmethod
    def forward(ctx: Any, half: Tensor) -> Tensor:
        halves = [torch.empty_like(half) for _ in range(dist.get_world_size())]
        dist.all_gather(halves, half.contiguous())
        return torch.cat(halves, 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        grad = grad.contiguous()
        dist.all_reduce(grad)
        return grad.chunk(dist.get_world_size(), 1)[dist.get_rank()]


@dataclass(frozen=True)
class Span:
    """The part of the sequence that this process works on."""

    start: int
    length: int
    total: int

    def places(self) -> Tensor:
        return torch.arange(self.start, self.start + self.length)


def rotate(x: Tensor, places: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    pace = torch.exp(-math.log(100.0) * torch.arange(half) / half)
    angle = places[:, None] * pace
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


class LetterModel(nn.Module):
    def __init__(self, alphabet: int, dim: int, offset_places: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(alphabet, dim)
        self.q, self.k, self.v = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.out = nn.Linear(dim, alphabet)
        self.offset_places = offset_places

    def forward(self, ids: Tensor, span: Span) -> Tensor:
        x = self.embed(ids)
        places = span.places() if self.offset_places else torch.arange(span.length)
        q, k = rotate(self.q(x), places), rotate(self.k(x), places)
        k, v = GatherHalves.apply(k), GatherHalves.apply(self.v(x))
        visible = span.places()[:, None] >= torch.arange(span.total)
        score = q @ k.transpose(1, 2) / math.sqrt(x.shape[-1])
        weight = score.masked_fill(~visible, float("-inf")).softmax(-1)
        logits: Tensor = self.out(x + weight @ v)
        return logits


def letters(rows: int, total: int, alphabet: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """The answer at each place is the letter four places before it."""
    ids = torch.randint(alphabet, (rows, total), generator=g)
    return ids, ids.roll(4, 1)


def train(healthy: bool = True, seed: int = 0, size: int = 32) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed + 1)
    alphabet, total = 8, 16
    part = total // dist.get_world_size()
    span = Span(dist.get_rank() * part, part, total)
    mine = slice(span.start, span.start + part)
    model = LetterModel(alphabet, size, offset_places=healthy)
    optimizer = torch.optim.Adam(model.parameters(), lr=1.5e-2)
    losses = []
    for _ in range(60):
        ids, answer = letters(24, total, alphabet, g)
        known = span.places() >= 4
        logits = model(ids[:, mine], span)[:, known]
        count = 24 * (total - 4)
        wanted = answer[:, mine][:, known]
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="sum")
        loss = loss / count
        optimizer.zero_grad()
        loss.backward()
        for p in model.parameters():
            assert p.grad is not None
            dist.all_reduce(p.grad)
        optimizer.step()
        whole = loss.detach().clone()
        dist.all_reduce(whole)
        losses.append(whole.item())
    return {"loss": losses}
