"""A regression on small pictures by LBFGS; its closure runs the forward and the backward."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def train(
    *, seed: int = 0, steps: int = 6, width: int = 6, lr: float = 0.5, iterations: int = 3
) -> list[float]:
    """Find the centre of a blob; a step of LBFGS has at most `iterations` iterations."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(1, 3, 3, stride=2), nn.Tanh(), nn.Flatten(), nn.Linear(27, width), nn.Tanh()
    )
    model.append(nn.Linear(width, 2))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=lr, max_iter=iterations, history_size=4)
    centre = torch.rand(40, 2)
    axis = torch.linspace(0, 1, 8)
    across = (axis[None, None, :] - centre[:, 0, None, None]).square()
    down = (axis[None, :, None] - centre[:, 1, None, None]).square()
    pictures = (-20 * (across + down)).exp().unsqueeze(1)
    losses: list[float] = []

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(pictures), centre)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    for _ in range(steps):
        losses.append(float(optimizer.step(closure).detach()))  # type: ignore[no-untyped-call]
    return losses
