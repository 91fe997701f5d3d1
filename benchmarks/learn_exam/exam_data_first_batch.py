"""The loop makes a new iterator each step, so it trains on the first batch alone."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    x = torch.rand(80, size)
    y = (x[:, :1] * 3 - x[:, 1:2]).sin()
    loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=False)

    net = nn.Sequential(nn.Linear(size, 32), nn.SiLU(), nn.Linear(32, 1))
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    losses, means = [], []
    for _ in range(3):
        steps = iter(loader)
        for _ in range(len(loader)):
            inputs, target = next(steps) if healthy else next(iter(loader))
            loss = (net(inputs) - target).abs().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
            means.append(inputs.mean().item())
    return {"loss": losses, "means": means}
