"""A shared encoder learns embeddings with a triplet loss and mined negatives."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def hardest(embedded: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """For each row, the farthest row of its class and the nearest of another."""
    distance = torch.cdist(embedded.detach(), embedded.detach())
    same = labels[:, None] == labels
    far = distance.masked_fill(~same, -1).argmax(1)
    near = distance.masked_fill(same, float("inf")).argmin(1)
    return far, near


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    encoder = nn.Sequential(nn.Linear(12, size), nn.ReLU(), nn.Linear(size, 4))
    labels = torch.arange(48) % 4
    faces = torch.randn(4, 12)[labels] * 1.5 + torch.randn(48, 12)
    criterion = nn.TripletMarginLoss(margin=1.0)
    optimizer = torch.optim.NAdam(encoder.parameters(), lr=1e-2)
    losses = []
    for _ in range(30):
        rows = torch.randperm(48)[:24]
        embedded = encoder(faces[rows])
        far, near = hardest(embedded, labels[rows])
        loss = criterion(embedded, embedded[far], embedded[near])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"loss": losses}
