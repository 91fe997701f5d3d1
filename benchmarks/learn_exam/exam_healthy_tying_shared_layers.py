"""One transformer layer is applied several times, and input and output words are shared."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn


class Universal(nn.Module):
    def __init__(self, words: int, width: int, times: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, batch_first=True)
        self.layers = nn.ModuleList([layer] * times)
        self.out = nn.Linear(width, words, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embed(tokens) * 0.5
        for layer in self.layers:
            hidden = layer(hidden)
        return self.out(hidden)


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = copy.deepcopy(Universal(12, size, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    losses, gaps = [], []
    for _ in range(24):
        tokens = torch.randint(0, 12, (16, 6))
        wanted = tokens.max(1, keepdim=True).values.expand(-1, 6)
        loss = nn.functional.cross_entropy(model(tokens).transpose(1, 2), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        gaps.append((model.out.weight - model.embed.weight).abs().max().item())
    return {"loss": losses, "gap": gaps}
