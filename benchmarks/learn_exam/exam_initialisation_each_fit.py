"""Each call of fit() builds the layers again, so given weights and earlier training are lost."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class StaticModel:
    """An average of word vectors with a weight for each word, and a linear classifier."""

    def __init__(self, vectors: Tensor, weights: Tensor, respect_weights: bool) -> None:
        self.vectors = vectors
        self.given = weights
        self.respect_weights = respect_weights
        self.losses: list[float] = []
        self.initialize(2)

    def initialize(self, classes: int) -> None:
        start = self.given if self.respect_weights else torch.ones_like(self.given)
        self.w = nn.Parameter(start.logit(eps=1e-3))
        self.head = nn.Linear(self.vectors.shape[1], classes)

    def scores(self, words: Tensor) -> Tensor:
        weight = torch.sigmoid(self.w[words]).unsqueeze(-1)
        return self.head((self.vectors[words] * weight).sum(1) / weight.sum(1))

    def fit(self, words: Tensor, labels: Tensor, steps: int) -> None:
        self.initialize(int(labels.max()) + 1)
        optimizer = torch.optim.Adam([self.w, *self.head.parameters()], lr=2e-2)
        for _ in range(steps):
            loss = nn.functional.cross_entropy(self.scores(words), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            self.losses.append(loss.item())


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    rarity = torch.linspace(0.05, 0.95, 30)
    model = StaticModel(torch.randn(30, size), rarity, respect_weights=healthy)
    words = torch.randint(0, 30, (50, 5))
    labels = (words.amax(1) % 2).long()
    model.fit(words, labels, 24)
    return {"loss": model.losses}
