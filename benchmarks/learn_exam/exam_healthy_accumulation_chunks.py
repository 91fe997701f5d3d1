"""A batch is cut into chunks of unequal size, each weighted by its share of the samples."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def accumulate(model: nn.Module, x: Tensor, y: Tensor, most: int) -> float:
    total = 0.0
    for inputs, wanted in zip(x.split(most), y.split(most), strict=True):
        loss = nn.functional.mse_loss(model(inputs), wanted) * (len(inputs) / len(x))
        loss.backward()
        total += loss.item()
    return total


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(7, size), nn.LayerNorm(size), nn.ReLU(), nn.Linear(size, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.8)
    x = torch.randn(84, 7)
    y = torch.stack([x[:, :3].sum(1), x[:, 3:].abs().sum(1)], 1)
    losses = []
    for _ in range(5):
        for rows in torch.randperm(84).split(20):
            losses.append(accumulate(model, x[rows], y[rows], 8))
            optimizer.step()
            optimizer.zero_grad()
    return {"loss": losses}
