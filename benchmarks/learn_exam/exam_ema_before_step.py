"""The average is updated before the optimizer's step, and lags it by one."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


class Loop:
    """A loop with callbacks around the step of the optimizer."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        self.before_step: list[Callable[[], None]] = []
        self.after_step: list[Callable[[], None]] = []

    def step(self, loss: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()
        for call in self.before_step:
            call()
        self.optimizer.step()
        for call in self.after_step:
            call()


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, size), nn.ReLU(), nn.Linear(size, 8))
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    loop = Loop(model)
    (loop.after_step if healthy else loop.before_step).append(
        lambda: averaged.update_parameters(model)
    )
    speech = torch.randn(64, 8).cumsum(1)
    losses, weights = [], []
    for step in range(20):
        rows = torch.arange(step * 16, step * 16 + 16) % 64
        loss = nn.functional.l1_loss(model(speech[rows]), speech[rows].flip(1))
        loop.step(loss)
        losses.append(loss.item())
        weights.append(sum(p.abs().sum().item() for p in averaged.parameters()))
    return {"loss": losses, "average": weights}
