"""Two towers that sum the words of queries and titles, with a ranking loss over the batch."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Tower(nn.Module):
    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width, padding_idx=0)
        self.project = nn.Linear(width, width)

    def forward(self, ids: Tensor) -> Tensor:
        return F.normalize(self.project(self.table(ids).sum(1)), dim=1)


class Ranker(nn.Module):
    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.query, self.title = Tower(words, width), Tower(words, width)
        self.temperature = nn.Parameter(torch.tensor(2.0))

    def forward(self, queries: Tensor, titles: Tensor) -> Tensor:
        scores: Tensor = self.query(queries) @ self.title(titles).T * self.temperature.exp()
        return scores


def pairs(words: int) -> tuple[Tensor, Tensor]:
    titles = torch.randint(1, words, (16, 6))
    queries = titles[:, :4].clone()
    lengths = torch.randint(1, 5, (16, 1))
    queries[torch.arange(4) >= lengths] = 0
    titles[torch.arange(6) >= lengths + 1] = 0
    return queries, titles


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    ranker = Ranker(24, size)

    def initialise(module: nn.Module) -> None:
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.5)
            if healthy and module.padding_idx is not None:
                nn.init.zeros_(module.weight[module.padding_idx])
        elif isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)

    ranker.apply(initialise)
    optimizer = torch.optim.Adam(ranker.parameters(), lr=1.5e-2)
    truth = torch.arange(16)
    losses = []
    for _ in range(28):
        scores = ranker(*pairs(24))
        loss = (F.cross_entropy(scores, truth) + F.cross_entropy(scores.T, truth)) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"loss": losses}
