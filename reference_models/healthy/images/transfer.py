"""Transfer learning: frozen features in evaluation mode, a new head, a plateau schedule."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def train(
    *,
    seed: int = 0,
    steps: int = 9,
    batch: int = 12,
    lr: float = 0.02,
    classes: int = 3,
    every: bool = False,
) -> list[float]:
    """Train the head only; its weight decays, its bias does not.

    With `every`, the optimizer also holds the parameters that are not trained.
    """
    torch.manual_seed(seed)
    features = nn.Sequential(
        nn.Conv2d(1, 6, 5), nn.BatchNorm2d(6), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten()
    )
    for parameter in features.parameters():
        parameter.requires_grad_(False)
    features.eval()
    head = nn.Linear(6 * 16, classes)
    groups: list[dict[str, Any]] = [
        {"params": [head.weight], "weight_decay": 0.01},
        {"params": [head.bias], "weight_decay": 0.0},
        *([{"params": features.parameters()}] if every else []),
    ]
    optimizer = torch.optim.AdamW(groups, lr=lr)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=2, factor=0.5)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.05)
    centres = torch.randn(classes, 1, 12, 12)
    losses = []
    for step in range(steps):
        labels = torch.randint(classes, (batch,))
        images = centres[labels] + 0.4 * torch.randn(batch, 1, 12, 12)
        with torch.no_grad():
            inputs = features(images)
        head.train()
        loss = criterion(head(inputs), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if step % 3 == 2:
            head.eval()
            with torch.no_grad():
                validation = criterion(head(features(centres)), torch.arange(classes))
            plateau.step(validation.item())
    return losses
