"""Guesses the stars of a review from its bag of words, with a small class that has fit and score.

Follows https://github.com/Lightning-Universe/lightning-bolts/issues/654.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

STARS = 5


class StarRegression:
    """A linear model on hashed words, trained by minimising the cross entropy."""

    def __init__(self, vocabulary: int, width: int, probabilities: bool) -> None:
        layers: list[nn.Module] = [
            nn.Linear(vocabulary, width),
            nn.ReLU(),
            nn.Linear(width, STARS),
        ]
        if probabilities:
            layers.append(nn.Softmax(dim=1))
        self.model = nn.Sequential(*layers)
        self.criterion = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=2e-2)

    def fit(self, loader: DataLoader[tuple[Tensor, ...]], epochs: int) -> list[float]:
        history = []
        for _ in range(epochs):
            for words, stars in loader:
                self.optimizer.zero_grad()
                loss = self.criterion(self.model(words), stars)
                loss.backward()
                self.optimizer.step()
                history.append(loss.item())
        return history

    @torch.no_grad()
    def score(self, words: Tensor, stars: Tensor) -> float:
        self.model.eval()
        hits = self.model(words).argmax(dim=1) == stars
        self.model.train()
        return hits.float().mean().item()


def reviews(count: int, vocabulary: int) -> tuple[Tensor, Tensor]:
    taste = torch.randn(vocabulary, STARS)
    words = torch.poisson(torch.full((count, vocabulary), 0.4))
    return words, (words @ taste).argmax(dim=1)


def train(healthy: bool = True, seed: int = 0, size: int = 32) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    words, stars = reviews(240, vocabulary=40)
    loader = DataLoader(TensorDataset(words[:192], stars[:192]), batch_size=32, shuffle=True)
    model = StarRegression(40, size, probabilities=not healthy)
    losses = model.fit(loader, epochs=5)
    return {"loss": losses, "accuracy": [model.score(words[192:], stars[192:])]}
