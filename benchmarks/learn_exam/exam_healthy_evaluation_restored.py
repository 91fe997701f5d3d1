"""A context manager evaluates in the middle of epochs and restores the mode of every module."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, size), nn.ReLU(), nn.Dropout(0.2), nn.Linear(size, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = torch.randn(80, 3) @ torch.randn(3, 8)
    losses, held = [], []
    model.train()
    for step in range(24):
        rows = data[torch.randperm(60)[:20]]
        loss = nn.functional.mse_loss(model(rows), rows)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % 5 == 4:
            with evaluating(model):
                held.append(nn.functional.mse_loss(model(data[60:]), data[60:]).item())
    return {"loss": losses, "held": held}
