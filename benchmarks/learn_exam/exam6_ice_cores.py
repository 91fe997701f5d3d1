"""Dates layers of ice from their chemistry; a function trains for one epoch, and is called again.

Follows https://github.com/alan-turing-institute/deepsensor/issues/47.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

Batch = tuple[Tensor, Tensor]


def train_epoch(
    net: nn.Module,
    batches: list[Batch],
    lr: float = 5e-3,
    optimizer: torch.optim.Optimizer | None = None,
) -> list[float]:
    if optimizer is None:
        optimizer = torch.optim.Adam(net.parameters(), lr=lr)
    losses = []
    for chemistry, age in batches:
        optimizer.zero_grad()
        loss = nn.functional.huber_loss(net(chemistry).squeeze(-1), age)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def drill(batches: int) -> list[Batch]:
    trend = torch.randn(9)
    cores = []
    for _ in range(batches):
        chemistry = torch.randn(24, 9)
        cores.append((chemistry, torch.tanh(chemistry @ trend) + 0.3 * chemistry[:, 0]))
    return cores


def train(healthy: bool = True, seed: int = 0, size: int = 24) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(9, size), nn.GELU(), nn.Linear(size, size), nn.GELU())
    net.append(nn.Linear(size, 1))
    cores = drill(5)
    kept = torch.optim.Adam(net.parameters(), lr=5e-3) if healthy else None
    losses: list[float] = []
    for _epoch in range(6):
        shuffled = [cores[i] for i in torch.randperm(len(cores))]
        losses += train_epoch(net, shuffled, optimizer=kept)
    return {"loss": losses}
