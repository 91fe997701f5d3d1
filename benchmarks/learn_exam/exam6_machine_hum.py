"""Tells from short recordings of a machine which of its bearings hums, with an encoder.

Follows https://github.com/IBM/TabFormer/pull/14.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class HumClassifier(nn.Module):
    def __init__(self, channels: int, d_model: int, classes: int, batch_first: bool) -> None:
        super().__init__()
        self.project = nn.Linear(channels, d_model)
        self.position = nn.Parameter(0.3 * torch.randn(1, 24, d_model))
        layer = nn.TransformerEncoderLayer(
            d_model, nhead=4, dim_feedforward=2 * d_model, dropout=0.0, batch_first=batch_first
        )
        self.encoder = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        for block in self.encoder.layers:
            for p in block.parameters():
                if p.dim() > 1:
                    nn.init.xavier_uniform_(p)
        self.classify = nn.Linear(d_model, classes)

    def forward(self, recordings: Tensor) -> Tensor:
        """(batch, time, channels) to (batch, classes)."""
        h = self.project(recordings) + self.position
        h = self.encoder(h)
        return self.classify(h.mean(dim=1))


def record(count: int, bearings: int) -> tuple[Tensor, Tensor]:
    which = torch.randint(bearings, (count,))
    time = torch.arange(24) / 24
    pitch = (1 + which)[:, None] * time
    phase = 0.15 * torch.randn(count, 1)
    hum = torch.stack([torch.sin(2 * math.pi * (pitch + phase + k / 3)) for k in range(3)], -1)
    return hum + 0.2 * torch.randn(count, 24, 3), which


def train(healthy: bool = True, seed: int = 0, size: int = 32) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = HumClassifier(3, size, classes=4, batch_first=healthy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    losses = []
    for _ in range(28):
        hum, which = record(32, bearings=4)
        loss = nn.functional.cross_entropy(model(hum), which)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"loss": losses}
