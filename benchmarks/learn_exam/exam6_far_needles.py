"""Learns to repeat the sign that stands some places back in a long row, in bfloat16 with rotation.

Follows https://github.com/EleutherAI/gpt-neox/issues/1003.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RotaryEmbedding(nn.Module):
    inv_freq: Tensor

    def __init__(self, dim: int, in_float: bool, base: float = 10_000.0) -> None:
        super().__init__()
        self.dim, self.base, self.in_float = dim, base, in_float
        self.register_buffer("inv_freq", self.frequencies(), persistent=False)

    def frequencies(self) -> Tensor:
        return 1.0 / self.base ** (torch.arange(0, self.dim, 2).float() / self.dim)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        inv_freq = self.frequencies() if self.in_float else self.inv_freq
        t = torch.arange(x.size(-2)).type_as(inv_freq)
        angles = torch.outer(t, inv_freq)
        both = torch.cat([angles, angles], dim=-1)
        return both.cos().to(x.dtype), both.sin().to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-right, left], dim=-1) * sin


class Reader(nn.Module):
    def __init__(self, signs: int, width: int, in_float: bool) -> None:
        super().__init__()
        self.heads = 2
        self.embed = nn.Embedding(signs, width)
        self.rotary = RotaryEmbedding(width // self.heads, in_float)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.norm = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, signs)

    def forward(self, row: Tensor) -> Tensor:
        h = self.embed(row)
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(self.norm(h)).chunk(3, dim=-1)
        )
        cos, sin = self.rotary(q)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h + self.out(mixed.transpose(1, 2).flatten(2))
        return self.lm_head(h)


def train(healthy: bool = True, seed: int = 0, size: int = 32) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = Reader(signs=6, width=size, in_float=healthy).to(torch.bfloat16)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(24):
        row = torch.randint(6, (2, 420))
        back = row.roll(1, dims=1)
        logits = model(row)[:, 4:].float()
        loss = F.cross_entropy(logits.flatten(0, 1), back[:, 4:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"loss": losses}
