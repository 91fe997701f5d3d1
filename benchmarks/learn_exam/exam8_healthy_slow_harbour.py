"""Waves in a harbour, with weights that are drawn back to slow ones every few steps."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class DrawnBack:
    """An optimizer whose weights move to the mean of themselves and slow ones at times."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, every: int) -> None:
        self.parameters = list(parameters)
        self.fast = torch.optim.AdamW(self.parameters, lr=lr)
        self.slow = [each.detach().clone() for each in self.parameters]
        self.every, self.steps = every, 0

    def zero_grad(self) -> None:
        self.fast.zero_grad()

    @torch.no_grad()
    def step(self) -> None:
        self.fast.step()
        self.steps += 1
        if self.steps % self.every:
            return
        for slow, fast in zip(self.slow, self.parameters, strict=True):
            slow += 0.6 * (fast - slow)
            fast.copy_(slow)


class Harbour(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.memory = nn.GRU(1, width, batch_first=True)
        self.next = nn.Linear(width, 1)

    def forward(self, heights: Tensor) -> Tensor:
        found: Tensor = self.next(self.memory(heights)[0])
        return found


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    harbour = Harbour(size)
    optimizer = DrawnBack(harbour.parameters(), lr=0.02, every=5)
    curve = []
    for _ in range(42):
        phase, pace = 6.3 * torch.rand(12, 1), 0.4 + 0.4 * torch.rand(12, 1)
        heights = (phase + pace * torch.arange(14)).sin().unsqueeze(2)
        loss = F.mse_loss(harbour(heights[:, :-1]), heights[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        curve.append(loss.item())
    return {"loss": curve}
