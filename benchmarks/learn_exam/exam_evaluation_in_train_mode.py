"""Validation does not call eval(), so dropout falsifies it."""

from __future__ import annotations

import torch
from torch import nn


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    digits = torch.rand(80, 25)
    classes = digits[:, :5].argmax(1)
    train_digits, valid_digits = digits[:60], digits[60:]
    model = nn.Sequential(
        nn.Linear(25, 2 * size),
        nn.ReLU(),
        nn.Dropout(0.4),
        nn.Linear(2 * size, 5),
        nn.LogSoftmax(dim=1),
    )
    criterion = nn.NLLLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    train_losses, valid_losses = [], []
    for _ in range(6):
        model.train()
        for start in range(0, 60, 12):
            rows = slice(start, start + 12)
            optimizer.zero_grad()
            loss = criterion(model(train_digits[rows]), classes[:60][rows])
            loss.backward()
            optimizer.step()
            train_losses.append(loss.item())
        with torch.no_grad():
            if healthy:
                model.eval()
            valid_losses.append(criterion(model(valid_digits), classes[60:]).item())
    return {"loss": train_losses, "valid": valid_losses}
