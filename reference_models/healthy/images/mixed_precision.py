"""A CNN with group normalisation under bfloat16 autocast: Adam, one-cycle schedule, clipping."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


def train(
    *, seed: int = 0, steps: int = 8, width: int = 12, max_norm: float = 1.0, batch: int = 16
) -> list[float]:
    """Classify blobs by the quadrant they lie in."""
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Conv2d(1, width, 3, stride=2, padding=1),
        nn.GroupNorm(2, width),
        nn.SiLU(),
        nn.Conv2d(width, width, 3, stride=2, padding=1),
        nn.GroupNorm(2, width),
        nn.SiLU(),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(width * 4, 16),
        nn.SiLU(),
        nn.Linear(16, 4),
    )
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-2, total_steps=steps + 1)
    losses = []
    for _ in range(steps):
        quadrant = torch.randint(4, (batch,))
        picture = 0.1 * torch.randn(batch, 1, 8, 8)
        for number, each in enumerate(quadrant.tolist()):
            row, column = 4 * (each // 2), 4 * (each % 2)
            picture[number, 0, row : row + 4, column : column + 4] += 1.0
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = net(picture)
            loss = F.cross_entropy(output, quadrant)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(net.parameters(), max_norm)
        optimizer.step()
        schedule.step()
        losses.append(float(loss.detach()))
    return losses
