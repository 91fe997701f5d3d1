"""A recurrent encoder and decoder with attention and teacher forcing learns to sort."""

from __future__ import annotations

import random

import torch
from torch import Tensor, nn


class Encoder(nn.Module):
    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.gru = nn.GRU(width, width, batch_first=True)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        out, state = self.gru(self.embed(tokens))
        return out, state


class Decoder(nn.Module):
    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.gru = nn.GRU(2 * width, width, batch_first=True)
        self.out = nn.Linear(width, words)

    def forward(self, token: Tensor, state: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        weights = (memory @ state[-1].unsqueeze(2)).softmax(1)
        context = (weights * memory).sum(1, keepdim=True)
        out, state = self.gru(torch.cat([self.embed(token), context], 2), state)
        return self.out(out[:, 0]), state


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    random.seed(seed)
    torch.manual_seed(seed)
    encoder, decoder = Encoder(9, size), Decoder(9, size)
    optimizers = [torch.optim.Adam(m.parameters(), lr=1e-2) for m in (encoder, decoder)]
    losses = []
    for _ in range(30):
        source = torch.randint(1, 9, (24, 4))
        wanted = source.sort(1).values
        for optimizer in optimizers:
            optimizer.zero_grad()
        memory, state = encoder(source)
        token = torch.zeros(24, 1, dtype=torch.long)
        loss = torch.zeros(())
        forced = random.random() < 0.7
        for place in range(4):
            scores, state = decoder(token, state, memory)
            loss = loss + nn.functional.cross_entropy(scores, wanted[:, place]) / 4
            token = wanted[:, place : place + 1] if forced else scores.argmax(1, keepdim=True)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.item())
    return {"loss": losses}
