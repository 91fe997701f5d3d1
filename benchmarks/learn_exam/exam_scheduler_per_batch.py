"""The scheduler counts epochs, and is stepped in the loop over batches."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR


def segmenter(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.InstanceNorm2d(width),
        nn.ReLU(),
        nn.Conv2d(width, 1, 1),
    )


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    epochs = 6
    model = segmenter(size)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scheduler = CosineAnnealingLR(optimizer, epochs)
    scans = torch.randn(24, 1, 8, 8).cumsum(-1)
    masks = (scans > scans.mean((2, 3), keepdim=True)).float()
    losses, rates = [], []
    for _ in range(epochs):
        for rows in torch.randperm(24).split(6):
            loss = nn.functional.binary_cross_entropy_with_logits(model(scans[rows]), masks[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if not healthy:
                scheduler.step()
            losses.append(loss.item())
            rates.append(optimizer.param_groups[0]["lr"])
        if healthy:
            scheduler.step()
    return {"loss": losses, "rate": rates}
