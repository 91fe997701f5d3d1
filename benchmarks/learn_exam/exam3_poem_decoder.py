"""Writes verses: a small decoder that computes in bfloat16."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

VERSES = (
    "the sea is wide and the wind is cold and the night is long and the stars are old "
    "we row to the west where the light went down and we sing of the hills and the sleeping town "
)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(self.norm1(x)).unsqueeze(1).chunk(3, dim=-1)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.squeeze(1))
        mapped: Tensor = x + self.mlp(self.norm2(x))
        return mapped


class Decoder(nn.Module):
    def __init__(self, letters: int, width: int, context: int) -> None:
        super().__init__()
        self.letters = nn.Embedding(letters, width)
        self.places = nn.Embedding(context, width)
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, letters, bias=False)

    def forward(self, text: Tensor) -> Tensor:
        x = self.letters(text) + self.places(torch.arange(text.shape[1]))
        logits: Tensor = self.head(self.norm(self.blocks(x)))
        return logits


class Poet:
    def __init__(self, width: int, master_weights: bool) -> None:
        letters = sorted(set(VERSES))
        self.text = torch.tensor([letters.index(letter) for letter in VERSES])
        self.model = Decoder(len(letters), width, context=24)
        self.context: AbstractContextManager[object] = nullcontext()
        if master_weights:
            self.context = torch.autocast("cpu", dtype=torch.bfloat16)
        else:
            self.model.to(torch.bfloat16)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1.5e-3, weight_decay=0.01)

    def step(self) -> float:
        starts = torch.randint(len(self.text) - 25, (16, 1))
        window = self.text[starts + torch.arange(25)]
        with self.context:
            logits = self.model(window[:, :-1])
        loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), window[:, 1:].flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    poet = Poet(size, master_weights=healthy)
    return {"loss": [poet.step() for _ in range(36)]}
