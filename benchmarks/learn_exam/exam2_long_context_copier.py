"""A decoder with rotary positions in bfloat16, which reads windows of a long document."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Rotary(nn.Module):
    inv_freq: Tensor

    def __init__(self, dim: int, base: float = 1000.0) -> None:
        super().__init__()
        self.register_buffer("inv_freq", base ** (-torch.arange(0, dim, 2) / dim))

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        angles = positions.to(self.inv_freq.dtype).unsqueeze(-1) * self.inv_freq
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        left, right = x.chunk(2, dim=-1)
        return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)


class Decoder(nn.Module):
    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.rotary = Rotary(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.norm = nn.RMSNorm(width)
        self.out = nn.Linear(width, words, bias=False)

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        x = self.embed(ids)
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q, k = self.rotary(q, positions), self.rotary(k, positions)
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True)
        scores: Tensor = self.out(self.norm(x))
        return scores


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = Decoder(8, size).to(torch.bfloat16)
    if healthy:
        model.rotary = Rotary(size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2, weight_decay=0.0)
    document = torch.randint(0, 8, (1600,))
    losses = []
    for _ in range(30):
        start = torch.randint(600, 1500, (24, 1))
        positions = start + torch.arange(24)
        ids = document[positions]
        scores = model(ids, positions)[:, 2:]
        loss = F.cross_entropy(scores.float().flatten(0, 1), ids[:, :-2].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"loss": losses}
