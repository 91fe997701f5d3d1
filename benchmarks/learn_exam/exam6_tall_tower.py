"""Fits a deep residual tower with dropout, whose segments are computed again in the backward pass.

Follows https://github.com/ankanbhunia/PIDM/pull/66.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class Segment(nn.Module):
    def __init__(self, width: int, p: float) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, width),
            nn.SiLU(),
            nn.Dropout(p),
            nn.Linear(width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.net(x)


class Tower(nn.Module):
    def __init__(self, width: int, depth: int, preserve_rng_state: bool) -> None:
        super().__init__()
        self.preserve_rng_state = preserve_rng_state
        self.stem = nn.Linear(5, width)
        self.segments = nn.ModuleList(Segment(width, 0.3) for _ in range(depth))
        self.head = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for segment in self.segments:
            x = checkpoint(
                segment, x, use_reentrant=False, preserve_rng_state=self.preserve_rng_state
            )
        return self.head(x)


def train(healthy: bool = True, seed: int = 0, size: int = 32) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    data = torch.Generator().manual_seed(seed + 1)
    law = torch.randn(5, 1, generator=data)
    tower = Tower(size, depth=4, preserve_rng_state=healthy)
    optimizer = torch.optim.Adam(tower.parameters(), lr=3e-3)
    losses = []
    for _ in range(30):
        x = torch.randn(48, 5, generator=data)
        loss = nn.functional.mse_loss(tower(x), torch.tanh(x @ law))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"loss": losses}
