"""Recommends films: sparse vectors of viewers and films, and a dense net with its own optimizer."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class Recommender(nn.Module):
    def __init__(self, viewers: int, films: int, width: int) -> None:
        super().__init__()
        self.viewers = nn.Embedding(viewers, width, sparse=True)
        self.films = nn.EmbeddingBag(films, width, mode="mean", sparse=True)
        self.dense = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, viewer: Tensor, seen: Tensor) -> Tensor:
        vectors = torch.cat([self.viewers(viewer), self.films(seen)], 1)
        rating: Tensor = self.dense(vectors).squeeze(1)
        return rating


class Recommending:
    def __init__(self, model: Recommender) -> None:
        self.model = model
        tables = [model.viewers.weight, model.films.weight]
        self.optimizers: list[torch.optim.Optimizer] = [
            torch.optim.SparseAdam(tables, lr=2e-2),
            torch.optim.Adam(model.dense.parameters(), lr=1e-2),
        ]

    def fit(self, data: TensorDataset, epochs: int) -> list[float]:
        losses = []
        for _ in range(epochs):
            for viewer, seen, rating in DataLoader(data, batch_size=20, shuffle=True):
                loss = nn.functional.mse_loss(self.model(viewer, seen), rating)
                for optimizer in self.optimizers:
                    optimizer.zero_grad()
                loss.backward()
                for optimizer in self.optimizers:
                    optimizer.step()
                losses.append(loss.item())
        return losses


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    generous, good = torch.randn(15), torch.randn(30)
    viewer, seen = torch.randint(15, (120,)), torch.randint(30, (120, 3))
    rating = generous[viewer] + good[seen].mean(1) + 3
    recommending = Recommending(Recommender(15, 30, size))
    return {"loss": recommending.fit(TensorDataset(viewer, seen, rating), 6)}
