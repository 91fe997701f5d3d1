"""The embedding is replaced by a larger one, and the tied output layer is not tied again."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class MaskedLM(nn.Module):
    """Predicts hidden words; the decoder shares the weight of the embedding."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(words, width)
        self.transform = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        self.decoder = nn.Linear(width, words)
        self.tie()

    def tie(self) -> None:
        self.decoder.weight = self.word_embeddings.weight

    def resize(self, words: int, retie: bool) -> None:
        embeddings, decoder = self.word_embeddings.weight, self.decoder.weight
        width = embeddings.shape[1]
        self.word_embeddings, self.decoder = nn.Embedding(words, width), nn.Linear(width, words)
        with torch.no_grad():
            self.word_embeddings.weight[: len(embeddings)] = embeddings
            self.decoder.weight[: len(decoder)] = decoder
            self.decoder.weight.copy_(self.word_embeddings.weight)
        if retie:
            self.tie()

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.word_embeddings(tokens)
        return self.decoder(self.transform(hidden + hidden.mean(1, keepdim=True)))


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = MaskedLM(16, size)
    model.resize(20, retie=healthy)
    mask = 19
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.01)
    sentences = torch.randint(0, 19, (50, 1)).expand(50, 6)
    losses, gaps = [], []
    for step in range(20):
        words = sentences[torch.arange(step * 10, step * 10 + 10) % 50]
        hidden = torch.rand(words.shape) < 0.4
        hidden[:, 0] = True
        scores = model(words.masked_fill(hidden, mask))
        loss = nn.functional.cross_entropy(scores[hidden], words[hidden])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        gaps.append((model.decoder.weight - model.word_embeddings.weight).abs().max().item())
    return {"loss": losses, "gap": gaps}
