"""Skip-gram with negative samples and sparse embeddings."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def pairs(text: Tensor, window: int) -> tuple[Tensor, Tensor]:
    centers, contexts = [], []
    for shift in (*range(-window, 0), *range(1, window + 1)):
        rolled = text.roll(-shift)
        inside = slice(window, -window)
        centers.append(text[inside])
        contexts.append(rolled[inside])
    return torch.cat(centers), torch.cat(contexts)


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    words = 20
    text = (torch.arange(400) // 10 % 4) * 5 + torch.randint(0, 5, (400,))
    centers, contexts = pairs(text, 2)
    inside, outside = (nn.Embedding(words, size, sparse=True) for _ in range(2))
    nn.init.uniform_(inside.weight, -0.5 / size, 0.5 / size)
    nn.init.zeros_(outside.weight)
    optimizer = torch.optim.SparseAdam([*inside.parameters(), *outside.parameters()], lr=2e-2)
    losses = []
    for _ in range(3):
        for rows in torch.randperm(len(centers)).split(128):
            found = inside(centers[rows])
            good = (found * outside(contexts[rows])).sum(1)
            bad = (found.unsqueeze(1) * outside(torch.randint(0, words, (len(rows), 4)))).sum(2)
            loss = -(nn.functional.logsigmoid(good) + nn.functional.logsigmoid(-bad).sum(1)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return {"loss": losses}
