"""Gradients are cleared once an epoch instead of once a step."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


def run_epoch(
    loss_of: Callable[[Tensor], Tensor],
    batches: list[Tensor],
    optimizer: torch.optim.Optimizer,
    each_step: bool,
) -> list[float]:
    losses = []
    optimizer.zero_grad()
    for batch in batches:
        if each_step:
            optimizer.zero_grad()
        loss = loss_of(batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    encode = nn.Sequential(nn.Linear(12, size), nn.ReLU(), nn.Linear(size, 3))
    decode = nn.Sequential(nn.Linear(3, size), nn.ReLU(), nn.Linear(size, 12))
    optimizer = torch.optim.Adam([*encode.parameters(), *decode.parameters()], lr=5e-3)
    basis = torch.randn(3, 12)
    batches = [torch.randn(16, 3) @ basis for _ in range(6)]

    def reconstruction(batch: Tensor) -> Tensor:
        return nn.functional.mse_loss(decode(encode(batch)), batch)

    losses: list[float] = []
    for _ in range(5):
        losses += run_epoch(reconstruction, batches, optimizer, healthy)
    return {"loss": losses}
