"""The norm to clip to follows the median of recent norms; an extreme step is left out."""

from __future__ import annotations

import statistics
from collections import deque

import torch
from torch import nn


class AutoClip:
    def __init__(self, history: int = 10) -> None:
        self.norms: deque[float] = deque(maxlen=history)

    def __call__(self, model: nn.Module) -> bool:
        """Clips the gradients; returns whether the step is worth taking."""
        limit = statistics.median(self.norms) if self.norms else float("inf")
        norm = nn.utils.clip_grad_norm_(model.parameters(), limit).item()
        self.norms.append(norm)
        return norm < 100 * limit


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, size), nn.ReLU(), nn.Linear(size, 6))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    clip = AutoClip()
    losses = []
    for step in range(30):
        data = torch.randn(24, 6)
        loss = nn.functional.l1_loss(model(data), data.roll(2, 1))
        optimizer.zero_grad()
        (loss * (1000 if step == 15 else 1)).backward()
        if clip(model):
            optimizer.step()
        losses.append(loss.item())
    return {"loss": losses}
