"""The scheduler is stepped before the optimizer, so the first rate is never used."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LRScheduler, StepLR


def advance(optimizer: Optimizer, scheduler: LRScheduler, scheduler_first: bool) -> float:
    """One update of weights and rate; returns the rate that the update used."""
    if scheduler_first:
        scheduler.step()
    rate = float(optimizer.param_groups[0]["lr"])
    optimizer.step()
    if not scheduler_first:
        scheduler.step()
    return rate


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(size, size), nn.Tanh(), nn.Linear(size, 1))
    optimizer = SGD(net.parameters(), lr=0.2)
    scheduler = StepLR(optimizer, step_size=3, gamma=0.6)
    features = torch.randn(60, size)
    depth = features[:, :2].sum(1, keepdim=True).tanh()

    def loss_on(rows: Tensor) -> Tensor:
        return nn.functional.smooth_l1_loss(net(features[rows]), depth[rows])

    losses, rates = [], []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(12):
            optimizer.zero_grad()
            loss = loss_on(torch.arange(60))
            loss.backward()
            rates.append(advance(optimizer, scheduler, scheduler_first=not healthy))
            losses.append(loss.item())
    return {"loss": losses, "rate": rates}
