"""Two views, a predictor, and a slowly moving target network without gradients."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn


def view(x: Tensor) -> Tensor:
    return x + 0.2 * torch.randn_like(x)


def agreement(p: Tensor, z: Tensor) -> Tensor:
    return 2 - 2 * nn.functional.cosine_similarity(p, z.detach(), dim=1).mean()


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    online = nn.Sequential(nn.Linear(8, size), nn.BatchNorm1d(size), nn.ReLU(), nn.Linear(size, 8))
    predictor = nn.Sequential(nn.Linear(8, size), nn.ReLU(), nn.Linear(size, 8))
    target = copy.deepcopy(online)
    target.requires_grad_(False)
    optimizer = torch.optim.AdamW([*online.parameters(), *predictor.parameters()], lr=5e-3)
    data = torch.randn(96, 8)
    losses = []
    for step in range(24):
        rows = data[torch.randperm(96)[:32]]
        one, two = view(rows), view(rows)
        with torch.no_grad():
            first, second = target(one), target(two)
        loss = agreement(predictor(online(one)), second) + agreement(predictor(online(two)), first)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        momentum = 1 - 0.1 * (math.cos(math.pi * step / 24) + 1) / 2
        with torch.no_grad():
            for slow, fast in zip(target.parameters(), online.parameters(), strict=True):
                slow.mul_(momentum).add_(fast, alpha=1 - momentum)
        losses.append(loss.item())
    return {"loss": losses}
