"""The average is updated once after training instead of after each step."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn


class ModelEma:
    def __init__(self, model: nn.Module, decay: float) -> None:
        self.module = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        averages, values = self.module.state_dict(), model.state_dict()
        for name, average in averages.items():
            average.lerp_(values[name], 1 - self.decay)


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(10, size), nn.Softplus(), nn.Linear(size, 1))
    model_ema = ModelEma(model, decay=0.8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    features = torch.randn(80, 10)
    targets = features[:, :3].sum(1, keepdim=True)

    def error(net: nn.Module, rows: Tensor) -> Tensor:
        return nn.functional.mse_loss(net(features[rows]), targets[rows])

    losses, averaged = [], []
    for _ in range(5):
        for rows in torch.randperm(80).split(16):
            loss = error(model, rows)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if healthy:
                model_ema.update(model)
            losses.append(loss.item())
        averaged.append(error(model_ema.module, torch.arange(80)).item())
    if not healthy:
        model_ema.update(model)
    return {"loss": losses, "averaged": averaged}
