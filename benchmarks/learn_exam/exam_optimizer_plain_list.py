"""Layers are kept in a plain list, so the optimizer does not know their parameters."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Tower(nn.Module):
    """A stack of residual layers between two projections."""

    layers: nn.ModuleList | list[nn.Module]

    def __init__(self, width: int, depth: int, registered: bool) -> None:
        super().__init__()
        self.enter = nn.Linear(2, width)
        layers: list[nn.Module] = [nn.Linear(width, width) for _ in range(depth)]
        self.layers = nn.ModuleList(layers) if registered else layers
        self.leave = nn.Linear(width, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.enter(inputs)
        for layer in self.layers:
            hidden = hidden + torch.tanh(layer(hidden))
        return self.leave(hidden)


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = Tower(size, 3, registered=healthy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    corners = torch.rand(128, 2) * 2 - 1
    heights = corners.prod(1, keepdim=True)
    losses = []
    for step in range(30):
        rows = torch.arange(step * 32, step * 32 + 32) % 128
        loss = nn.functional.mse_loss(model(corners[rows]), heights[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    inner = sum(p.abs().sum().item() for layer in model.layers for p in layer.parameters())
    return {"loss": losses, "inner": [inner]}
