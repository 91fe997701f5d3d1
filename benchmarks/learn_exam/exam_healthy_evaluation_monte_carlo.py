"""Dropout is on in evaluation on purpose, to estimate how sure the model is."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def with_dropout(model: nn.Module) -> None:
    """Puts the model into eval mode except for its dropouts."""
    model.eval()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.train()


@torch.no_grad()
def spread(model: nn.Module, x: Tensor, samples: int = 5) -> float:
    with_dropout(model)
    return torch.stack([model(x) for _ in range(samples)]).std(0).mean().item()


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(3, size), nn.BatchNorm1d(size), nn.ReLU(), nn.Dropout(0.1), nn.Linear(size, 1)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    x = torch.randn(60, 3)
    y = x.sum(1, keepdim=True)
    losses, spreads = [], []
    for _ in range(6):
        model.train()
        for rows in torch.randperm(60).split(15):
            loss = nn.functional.mse_loss(model(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        spreads.append(spread(model, x[:10]))
    return {"loss": losses, "spread": spreads}
