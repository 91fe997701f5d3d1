"""Captions of very unequal length, learned in windows of several micro-batches."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

IGNORE = -100


class Captioner(nn.Module):
    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.picture = nn.Linear(4, width)
        self.word = nn.Embedding(words, width)
        self.cell = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, words)

    def forward(self, pictures: Tensor, words: Tensor) -> Tensor:
        start = torch.tanh(self.picture(pictures)).unsqueeze(0)
        states, _ = self.cell(self.word(words), start)
        scores: Tensor = self.out(states)
        return scores


def micro_batch(length: int) -> tuple[Tensor, Tensor]:
    pictures = torch.randn(6, 4)
    first = pictures.argmax(1, keepdim=True)
    stride = 1 + (length > 4)
    words = (first + stride * torch.arange(length + 1)) % 8
    words[0, length:] = IGNORE
    return pictures, words


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = Captioner(8, size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.8)
    losses = []
    for _ in range(26):
        lengths = torch.randint(1, 4, (4,)).tolist()
        window = [micro_batch(length) for length in (*lengths, 12)]
        counts = [int((words[:, 1:] != IGNORE).sum()) for _, words in window]
        total = 0.0
        optimizer.zero_grad()
        for (pictures, words), count in zip(window, counts, strict=True):
            scores = model(pictures, words[:, :-1].clamp_min(0))
            summed = F.cross_entropy(
                scores.flatten(0, 1), words[:, 1:].flatten(), ignore_index=IGNORE, reduction="sum"
            )
            share = summed / sum(counts) if healthy else summed / count / len(window)
            share.backward()
            total += summed.item()
        optimizer.step()
        losses.append(total / sum(counts))
    return {"loss": losses}
