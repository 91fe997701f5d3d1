"""Layers thaw one after another, and join the optimizer as groups when they do."""

from __future__ import annotations

import torch
from torch import nn


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    layers = [nn.Linear(8, size), nn.Linear(size, size), nn.Linear(size, 3)]
    model = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
    for layer in layers[:-1]:
        layer.requires_grad_(False)
    optimizer = torch.optim.AdamW(layers[-1].parameters(), lr=1e-2)
    rows = torch.randn(60, 8)
    labels = rows[:, :3].argmax(1)
    losses = []
    for epoch in range(6):
        if epoch in (2, 4):
            thawed = layers[1 if epoch == 2 else 0].requires_grad_(True)
            optimizer.add_param_group({"params": list(thawed.parameters()), "lr": 5e-3})
        for batch in torch.randperm(60).split(15):
            loss = nn.functional.cross_entropy(model(rows[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return {"loss": losses}
