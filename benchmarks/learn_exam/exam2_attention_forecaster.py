"""A causal attention forecaster of noisy waves, scored on held-out waves after each epoch."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Attend(nn.Module):
    def __init__(self, width: int, drop: float, healthy: bool) -> None:
        super().__init__()
        self.qkv, self.merge = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.drop, self.healthy = drop, healthy

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(2, (3, 2, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        drop = self.drop
        if self.healthy and not self.training:
            drop = 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=drop)
        merged: Tensor = self.merge(mixed.transpose(1, 2).flatten(2))
        return merged


class Forecaster(nn.Module):
    def __init__(self, width: int, healthy: bool) -> None:
        super().__init__()
        self.enter = nn.Linear(1, width)
        self.place = nn.Parameter(0.1 * torch.randn(12, width))
        self.attend = Attend(width, 0.3, healthy)
        self.norm = nn.LayerNorm(width)
        self.leave = nn.Linear(width, 1)

    def forward(self, past: Tensor) -> Tensor:
        x = self.enter(past) + self.place
        x = x + self.attend(x)
        future: Tensor = self.leave(torch.tanh(self.norm(x)))
        return future


def waves(count: int) -> Tensor:
    time = torch.arange(13) * 0.5 + 6 * torch.rand(count, 1)
    return (time.sin() + 0.05 * torch.randn(count, 13)).unsqueeze(2)


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = Forecaster(size, healthy)
    held_out = waves(32)
    optimizer = torch.optim.NAdam(model.parameters(), lr=8e-3)
    record: dict[str, list[float]] = {"loss": [], "val": []}
    for _ in range(5):
        model.train()
        for _ in range(5):
            batch = waves(32)
            loss = F.mse_loss(model(batch[:, :-1]), batch[:, 1:])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            record["loss"].append(loss.item())
        model.eval()
        with torch.no_grad():
            record["val"].append(F.mse_loss(model(held_out[:, :-1]), held_out[:, 1:]).item())
    return record
