"""One optimizer for embeddings and one for the rest, both cleared and stepped each time."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Recommender(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(20, width), nn.Embedding(30, width)
        self.tower = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        return self.tower(torch.cat([self.users(users), self.items(items)], 1)).squeeze(1)


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    users, items = torch.randint(0, 20, (160,)), torch.randint(0, 30, (160,))
    clicked = ((users + items) % 3 == 0).float()
    model = Recommender(size)
    tables = torch.optim.Adagrad([*model.users.parameters(), *model.items.parameters()], lr=0.2)
    dense = torch.optim.Adam(model.tower.parameters(), lr=1e-2)
    losses = []
    for _ in range(5):
        for rows in torch.randperm(160).split(40):
            loss = nn.functional.binary_cross_entropy_with_logits(
                model(users[rows], items[rows]), clicked[rows]
            )
            for optimizer in (tables, dense):
                optimizer.zero_grad()
            loss.backward()
            for optimizer in (tables, dense):
                optimizer.step()
            losses.append(loss.item())
    return {"loss": losses}
