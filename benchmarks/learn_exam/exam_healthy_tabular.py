"""A table with numbers and categories; embeddings, batch norm, early stopping."""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, random_split


class Row(NamedTuple):
    numbers: Tensor
    categories: Tensor
    target: Tensor


class TabularModel(nn.Module):
    def __init__(self, numbers: int, cardinalities: list[int], width: int) -> None:
        super().__init__()
        self.embeds = nn.ModuleList(nn.Embedding(count, 3) for count in cardinalities)
        self.bn = nn.BatchNorm1d(numbers)
        self.layers = nn.Sequential(
            nn.Linear(numbers + 3 * len(cardinalities), width),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(width, 1),
        )

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        parts = [embed(categories[:, i]) for i, embed in enumerate(self.embeds)]
        return self.layers(torch.cat([self.bn(numbers), *parts], 1))


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    numbers, categories = torch.randn(120, 4) * 5 + 2, torch.randint(0, 4, (120, 2))
    target = numbers[:, :1] / 5 + categories[:, :1] - categories[:, 1:]
    made = torch.Generator().manual_seed(seed)
    fit, held = random_split(TensorDataset(numbers, categories, target), [96, 24], made)
    model = TabularModel(4, [4, 4], size)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2, weight_decay=1e-5)
    losses: list[float] = []
    best, kept, patience = float("inf"), copy.deepcopy(model.state_dict()), 3
    for _ in range(8):
        model.train()
        for row in map(Row._make, DataLoader(fit, 24, shuffle=True)):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(row.numbers, row.categories), row.target)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        model.eval()
        with torch.no_grad():
            rows = [Row._make(parts) for parts in DataLoader(held, 24)]
            error = sum(
                nn.functional.mse_loss(model(r.numbers, r.categories), r.target).item()
                for r in rows
            )
        if error < best:
            best, kept, patience = error, copy.deepcopy(model.state_dict()), 3
        else:
            patience -= 1
        if patience == 0:
            break
    model.load_state_dict(kept)
    return {"loss": losses, "best": [best]}
