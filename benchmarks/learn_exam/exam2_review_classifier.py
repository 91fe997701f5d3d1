"""Reviews of unequal length through a transformer encoder, driven by a nested dict of settings."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

CONFIG: dict[str, Any] = {
    "data": {"vocabulary": 20, "longest": 10, "batch": 24},
    "model": {"layers": 2, "heads": 4},
    "optim": {"lr": 5e-3, "betas": (0.9, 0.98)},
    "steps": 28,
}


class ReviewEncoder(nn.Module):
    def __init__(self, vocabulary: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width, padding_idx=0)
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.classify = nn.Linear(width, 2)

    def forward(self, tokens: Tensor, blocked: Tensor) -> Tensor:
        states = self.encoder(self.embed(tokens), src_key_padding_mask=blocked)
        words = tokens.ne(0).unsqueeze(-1)
        pooled = (states * words).sum(1) / words.sum(1)
        scores: Tensor = self.classify(pooled)
        return scores


def reviews(vocabulary: int, longest: int, batch: int) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(1, vocabulary, (batch, longest))
    lengths = torch.randint(3, longest, (batch, 1))
    tokens = tokens.masked_fill(torch.arange(longest) >= lengths, 0)
    good = ((tokens > vocabulary // 2).sum(1) * 2 > lengths.squeeze(1)).long()
    return tokens, good


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = ReviewEncoder(CONFIG["data"]["vocabulary"], size, **CONFIG["model"])
    optimizer = torch.optim.Adam(model.parameters(), **CONFIG["optim"])
    losses = []
    for _ in range(CONFIG["steps"]):
        tokens, good = reviews(**CONFIG["data"])
        mask = tokens.eq(0) if healthy else tokens.ne(0)
        loss = nn.functional.cross_entropy(model(tokens, mask), good)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"loss": losses}
