"""Rates fall with depth, gradients are set to None by hand, and one group joins later."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn


def layered_groups(model: nn.Sequential, rate: float, decay: float) -> list[dict[str, object]]:
    depth = len(model)
    return [
        {"params": list(layer.parameters()), "lr": rate * decay ** (depth - 1 - place)}
        for place, layer in enumerate(model)
        if any(True for _ in layer.parameters())
    ]


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = nn.Sequential(
        OrderedDict(
            enter=nn.Linear(9, size), a=nn.ReLU(), middle=nn.Linear(size, size), b=nn.ReLU()
        )
    )
    head = nn.Linear(size, 2)
    optimizer = torch.optim.AdamW(layered_groups(model, 2e-2, 0.7), weight_decay=1e-3)
    optimizer.add_param_group({"params": list(head.parameters()), "lr": 2e-2})
    rows = torch.randn(64, 9)
    wanted = torch.stack([rows[:, :4].sum(1), rows[:, 4:].sum(1)], 1)
    losses = []
    for step in range(20):
        batch = torch.arange(step * 16, step * 16 + 16) % 64
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None
        loss = nn.functional.huber_loss(head(model(rows[batch])), wanted[batch])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"loss": losses}
