"""A tiny chat model that is pretrained, given two more tokens, and tuned on turns."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ChatModel(nn.Module):
    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.mix = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        states, _ = self.mix(self.embed(ids))
        scores: Tensor = self.head(states)
        return scores


def phase(model: ChatModel, batches: list[Tensor], lr: float) -> list[float]:
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    losses = []
    for ids in batches:
        scores = model(ids[:, :-1])
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    words = 10
    model = ChatModel(words, size)

    def grow(extra: int) -> None:
        embed = nn.Embedding(words + extra, size)
        head = nn.Linear(size, words + extra, bias=False)
        with torch.no_grad():
            embed.weight[:words] = model.embed.weight
            embed.weight[words:] = model.embed.weight.mean(0)
            head.weight.copy_(embed.weight)
        if healthy:
            head.weight = embed.weight
        model.embed, model.head = embed, head

    count = torch.arange(7)
    plain = [(torch.randint(0, words, (12, 1)) + count) % words for _ in range(10)]
    losses = phase(model, plain, 2e-2)
    grow(2)
    turns = []
    for _ in range(20):
        ids = (torch.randint(0, words, (12, 1)) + count) % words
        ids[:, 0], ids[:, 4] = words, words + 1
        turns.append(ids)
    losses += phase(model, turns, 4e-2)
    return {"loss": losses}
