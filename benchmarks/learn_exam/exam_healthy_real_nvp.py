"""A normalising flow of coupling layers fits a ring."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class Coupling(nn.Module):
    def __init__(self, width: int, flip: bool) -> None:
        super().__init__()
        self.flip = flip
        self.net = nn.Sequential(nn.Linear(1, width), nn.Tanh(), nn.Linear(width, 2))
        nn.init.zeros_(self.net.get_parameter("2.weight"))
        nn.init.zeros_(self.net.get_parameter("2.bias"))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a, b = x.flip(1).split(1, 1) if self.flip else x.split(1, 1)
        log_scale, shift = self.net(a).split(1, 1)
        log_scale = torch.tanh(log_scale)
        moved = torch.cat([a, b * log_scale.exp() + shift], 1)
        return (moved.flip(1) if self.flip else moved), log_scale.squeeze(1)


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    flow = nn.ModuleList(Coupling(size, flip=bool(n % 2)) for n in range(4))
    optimizer = torch.optim.Adamax(flow.parameters(), lr=2e-2)
    losses = []
    for _ in range(40):
        angle = torch.rand(64) * 2 * math.pi
        z = torch.stack([angle.cos(), angle.sin()], 1) * 2 + 0.1 * torch.randn(64, 2)
        total = torch.zeros(64)
        for layer in flow:
            z, log_scale = layer(z)
            total = total + log_scale
        loss = (z.square().sum(1) / 2 - total).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"loss": losses}
