"""Validation keeps the graph, because nothing disables gradients."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn


def evaluate(model: nn.Module, images: Tensor, masks: Tensor, quiet: bool) -> Tensor:
    context: AbstractContextManager[object] = torch.no_grad() if quiet else nullcontext()
    with context:
        total = torch.zeros(())
        for image, mask in zip(images.split(4), masks.split(4), strict=True):
            total = total + nn.functional.binary_cross_entropy_with_logits(model(image), mask)
    return total


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    adapter = nn.Sequential(nn.Conv2d(1, size, 1), nn.ReLU(), nn.Conv2d(size, 1, 1))
    optimizer = torch.optim.AdamW(adapter.parameters(), lr=2e-2)
    images = torch.rand(24, 1, 6, 6)
    masks = (images > 0.5).float()
    losses, graphs = [], []
    for _ in range(6):
        adapter.train()
        for rows in torch.arange(16).split(4):
            loss = nn.functional.binary_cross_entropy_with_logits(
                adapter(images[rows]), masks[rows]
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        adapter.eval()
        found = evaluate(adapter, images[16:], masks[16:], quiet=healthy)
        graphs.append(float(found.requires_grad))
    return {"loss": losses, "graph": graphs}
