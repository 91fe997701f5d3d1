"""Adapters of rank 2 in a frozen network are trained, and merged at the end once."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class Adapted(nn.Module):
    def __init__(self, base: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.base, self.scale = base, alpha / rank
        self.a = nn.Parameter(torch.empty(rank, base.in_features))
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.scale * nn.functional.linear(x, self.b @ self.a)

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        self.base.weight += self.scale * self.b @ self.a
        return self.base


def adapt(module: nn.Module) -> None:
    for name, child in list(module.named_children()):
        if isinstance(child, nn.Linear):
            setattr(module, name, Adapted(child, 2, 4.0))
        else:
            adapt(child)


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(6, size), nn.Tanh(), nn.Sequential(nn.Linear(size, size), nn.Tanh())
    )
    head = nn.Linear(size, 1)
    model.requires_grad_(False)
    adapt(model)
    trained = [p for p in (*model.parameters(), *head.parameters()) if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    x = torch.randn(72, 6)
    y = x[:, :2].prod(1, keepdim=True)
    losses = []
    for _ in range(6):
        for rows in torch.randperm(72).split(18):
            loss = nn.functional.mse_loss(head(model(x[rows])), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    with torch.no_grad():
        before = model(x)
        for owner, name in ((model, "0"), (model.get_submodule("2"), "0")):
            adapter = getattr(owner, name)
            setattr(owner, name, adapter.merged())
        change = (model(x) - before).abs().max().item()
    return {"loss": losses, "change": [change]}
