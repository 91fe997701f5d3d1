"""A one-cycle schedule over batches, which moves the momentum too."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    epochs, batches = 4, 6
    net = nn.Sequential(nn.Conv1d(1, size, 5), nn.ReLU(), nn.Flatten(), nn.Linear(8 * size, 3))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    scheduler = OneCycleLR(optimizer, max_lr=0.1, epochs=epochs, steps_per_epoch=batches)
    waves = torch.sin(torch.arange(12) * torch.tensor([0.3, 0.9, 2.0])[torch.arange(72) % 3, None])
    waves = (waves + 0.3 * torch.randn(72, 12)).unsqueeze(1)
    losses, rates = [], []
    for _ in range(epochs):
        for rows in torch.randperm(72).split(72 // batches):
            loss = nn.functional.cross_entropy(net(waves[rows]), rows % 3)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            losses.append(loss.item())
            rates.append(float(scheduler.get_last_lr()[0]))
    return {"loss": losses, "rate": rates}
