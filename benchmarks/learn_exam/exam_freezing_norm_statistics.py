"""The backbone is frozen but left in train mode, so its batch norms keep averaging."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn


def deactivate_requires_grad(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.requires_grad = False


def backbone(width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, width, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip


def statistics(model: nn.Module) -> Tensor:
    return torch.cat([b.flatten() for n, b in model.named_buffers() if "running" in n])


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    features = backbone(size)
    deactivate_requires_grad(features)
    before = statistics(copy.deepcopy(features))
    probe = nn.Linear(size, 2)
    optimizer = torch.optim.SGD(probe.parameters(), lr=0.5, momentum=0.9)
    images = torch.randn(64, 3, 6, 6) + 1
    labels = (images.mean((1, 2, 3)) > 1).long()
    losses, drifts = [], []
    for _ in range(5):
        probe.train()
        features.train()
        if healthy:
            features.eval()
        for rows in torch.arange(64).split(16):
            loss = nn.functional.cross_entropy(probe(features(images[rows])), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            drifts.append((statistics(features) - before).abs().max().item())
    return {"loss": losses, "drift": drifts}
