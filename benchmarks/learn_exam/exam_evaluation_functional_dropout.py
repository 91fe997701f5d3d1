"""Functional dropout without its argument `training` acts in evaluation too."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Prenet(nn.Module):
    def __init__(self, inputs: int, width: int, follow_mode: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(inputs, width), nn.Linear(width, width)])
        self.follow_mode = follow_mode

    def forward(self, frames: Tensor) -> Tensor:
        for layer in self.layers:
            frames = torch.relu(layer(frames))
            if self.follow_mode:
                frames = F.dropout(frames, 0.3, training=self.training)
            else:
                frames = F.dropout(frames, 0.3)
        return frames


class Synthesizer(nn.Module):
    def __init__(self, width: int, follow_mode: bool) -> None:
        super().__init__()
        self.prenet = Prenet(6, width, follow_mode)
        self.out = nn.Linear(width, 6)

    def forward(self, frames: Tensor) -> Tensor:
        return self.out(self.prenet(frames))


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = Synthesizer(size, follow_mode=healthy)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    frames = torch.randn(64, 6)
    following = frames.roll(1, 1) * 2
    losses, repeats = [], []
    for step in range(24):
        rows = torch.arange(step * 16, step * 16 + 16) % 64
        model.train()
        loss = F.mse_loss(model(frames[rows]), following[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % 6 == 5:
            model.eval()
            with torch.no_grad():
                repeats.append((model(frames) - model(frames)).abs().max().item())
    return {"loss": losses, "repeat": repeats}
