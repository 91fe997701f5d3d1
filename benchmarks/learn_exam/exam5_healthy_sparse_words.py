"""Classifies bags of words: sparse gradients for the table of words, dense ones for the rest."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

Doc = tuple[Tensor, int]


def collate(docs: list[Doc]) -> tuple[Tensor, Tensor, Tensor]:
    lengths = torch.tensor([0] + [len(words) for words, _ in docs[:-1]])
    return torch.cat([w for w, _ in docs]), lengths.cumsum(0), torch.tensor([t for _, t in docs])


def documents(count: int, vocabulary: int, g: torch.Generator) -> list[Doc]:
    docs = []
    for _ in range(count):
        topic = int(torch.randint(0, 4, (), generator=g))
        length = int(torch.randint(4, 12, (), generator=g))
        odds = torch.ones(vocabulary)
        odds[topic::4] = 3.0
        docs.append((torch.multinomial(odds, length, generator=g), topic))
    return docs


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    docs = documents(192, 60, torch.Generator().manual_seed(seed))
    loader = DataLoader(docs, batch_size=24, shuffle=True, collate_fn=collate)  # type: ignore[arg-type]
    bag = nn.EmbeddingBag(60, size, sparse=True, mode="mean")
    top = nn.Sequential(nn.LayerNorm(size), nn.Linear(size, 4))
    optimizers = [
        torch.optim.SparseAdam(list(bag.parameters()), lr=2e-2),
        torch.optim.Adam(top.parameters(), lr=1e-2),
    ]
    losses = []
    for _ in range(6):
        for words, offsets, topics in loader:
            loss = nn.functional.cross_entropy(top(bag(words, offsets)), topics)
            for o in optimizers:
                o.zero_grad()
            loss.backward()
            for o in optimizers:
                o.step()
            losses.append(loss.item())
    return {"loss": losses}
