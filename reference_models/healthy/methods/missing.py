"""Measurements with gaps: some inputs and some targets of a batch are not a number.

Inputs are replaced by zero beside a mask, and losses leave out the targets that are missing.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts
from torch.utils.data import DataLoader, TensorDataset

NAN = float("nan")


class GapNet(nn.Module):
    """A perceptron that also gets which inputs are there."""

    def __init__(self, n_in: int, hidden: int, n_out: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(2 * n_in, hidden), nn.LayerNorm(hidden), nn.SiLU(), nn.Linear(hidden, n_out)
        )

    def forward(self, x: Tensor) -> Tensor:
        there = ~torch.isnan(x)
        out: Tensor = self.layers(torch.cat([torch.nan_to_num(x), there.float()], dim=-1))
        return out


def masked_mse(pred: Tensor, target: Tensor) -> Tensor:
    there = ~torch.isnan(target)
    error = (pred - torch.where(there, target, 0.0)) ** 2
    return (error * there).sum() / there.sum().clamp(min=1)


def make_data(n: int, gaps: float) -> TensorDataset:
    x = torch.randn(n, 6)
    y = torch.stack([x[:, 0] + x[:, 1], x[:, 2] * 0.5, x[:, 3] - x[:, 4]], dim=1)
    return TensorDataset(
        x.masked_fill(torch.rand(n, 6) < gaps, NAN), y.masked_fill(torch.rand(n, 3) < gaps, NAN)
    )


def train(
    *, seed: int = 0, steps: int = 6, hidden: int = 24, gaps: float = 0.2, lr: float = 2e-2
) -> list[float]:
    """Train `steps` epochs; the schedule gets fractions of epochs, and restarts."""
    torch.manual_seed(seed)
    loader = DataLoader(make_data(72, gaps), batch_size=18, shuffle=True)
    net = GapNet(6, hidden, 3)
    optimizer = torch.optim.RAdam(net.parameters(), lr=lr)
    scheduler = CosineAnnealingWarmRestarts(optimizer, T_0=2)
    means = []
    for epoch in range(steps):
        total = 0.0
        for i, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            loss = masked_mse(net(x), y)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            scheduler.step(epoch + i / len(loader))
            total += loss.item()
        means.append(total / len(loader))
    return means
