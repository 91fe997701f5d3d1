"""A pretrained encoder is loaded strictly into a model with a new head and a new optimizer."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(10, width), nn.ReLU(), nn.Linear(width, width))
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.encoder(x)))


def fit(model: nn.Module, x: Tensor, y: Tensor, rate: float, steps: int) -> list[float]:
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    losses = []
    for _ in range(steps):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    x = torch.randn(64, 10)
    pretrained = Model(size, 10)
    before = fit(pretrained, x, x.flip(1), 1e-2, 16)
    tuned = Model(size, 1)
    found = tuned.load_state_dict(pretrained.encoder.state_dict(prefix="encoder."), strict=False)
    assert not found.unexpected_keys
    assert all(name.startswith("head.") for name in found.missing_keys)
    after = fit(tuned, x, x[:, :1] * 2, 5e-3, 16)
    return {"loss": after, "before": before}
