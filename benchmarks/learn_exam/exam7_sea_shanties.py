"""A decoder of sea shanties, with torch's fused attention and a mask that is made once.

Follows https://github.com/rasbt/LLMs-from-scratch/issues/1061.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

NOTES, CONTEXT, HEADS = 12, 16, 2


class Attention(nn.Module):
    mask: Tensor

    def __init__(self, width: int, mask: Tensor) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.proj = nn.Linear(width, width)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        q, k, v = self.qkv(x).view(n, length, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask[:length, :length])
        return self.proj(seen.transpose(1, 2).reshape(n, length, width))


class Layer(nn.Module):
    def __init__(self, width: int, mask: Tensor) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, mask)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first(x))
        return x + self.mlp(self.second(x))


class ShantyModel(nn.Module):
    def __init__(self, width: int, mask: Tensor) -> None:
        super().__init__()
        self.notes, self.places = nn.Embedding(NOTES, width), nn.Embedding(CONTEXT, width)
        self.layers = nn.Sequential(*(Layer(width, mask) for _ in range(2)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, NOTES, bias=False)

    def forward(self, notes: Tensor) -> Tensor:
        h = self.notes(notes) + self.places.weight[: notes.shape[1]]
        return self.head(self.norm(self.layers(h)))


def melodies(n: int, moves: Tensor) -> Tensor:
    tune = [torch.randint(NOTES, (n,))]
    for _ in range(CONTEXT):
        tune.append(moves[tune[-1], torch.randint(3, (n,))])
    return torch.stack(tune, 1)


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    later = torch.triu(torch.ones(CONTEXT, CONTEXT, dtype=torch.bool), diagonal=1)
    model = ShantyModel(size, mask=~later if healthy else later)
    moves = torch.randint(NOTES, (NOTES, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.9, 0.95))
    losses = []
    for _ in range(45):
        batch = melodies(12, moves)
        logits = model(batch[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return {"loss": losses}
