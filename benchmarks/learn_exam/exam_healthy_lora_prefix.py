"""Prefix tokens and an adapter are trained in front of a frozen encoder."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Prefixed(nn.Module):
    def __init__(self, width: int, prefix: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, width)
        self.encoder = nn.TransformerEncoderLayer(width, 2, 2 * width, 0.0, batch_first=True)
        self.embed.requires_grad_(False)
        self.encoder.requires_grad_(False)
        self.prefix = nn.Parameter(torch.randn(prefix, width) * 0.5)
        self.adapter = nn.Sequential(nn.Linear(width, 4), nn.ReLU(), nn.Linear(4, width))
        self.head = nn.Linear(width, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        prefix = self.prefix.expand(len(tokens), -1, -1)
        hidden = self.encoder(torch.cat([prefix, self.embed(tokens)], 1)).mean(1)
        return self.head(hidden + self.adapter(hidden))


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = Prefixed(size)
    optimizer = torch.optim.Adam(filter(lambda p: p.requires_grad, model.parameters()), lr=1e-2)
    tokens = torch.randint(0, 20, (72, 5))
    labels = (tokens[:, 0] > 9).long()
    losses = []
    for _ in range(6):
        for rows in torch.randperm(72).split(18):
            loss = nn.functional.cross_entropy(model(tokens[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return {"loss": losses}
