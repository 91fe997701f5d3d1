"""An encoder learns masked words and whether two segments belong together."""

from __future__ import annotations

import torch
from torch import Tensor, nn

MASK, CLS, SEP, FIRST = 0, 1, 2, 3


class Bert(nn.Module):
    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.word = nn.Embedding(words, width)
        self.position = nn.Embedding(16, width)
        self.segment = nn.Embedding(2, width)
        self.norm, self.drop = nn.LayerNorm(width), nn.Dropout(0.1)
        layer = nn.TransformerEncoderLayer(width, 2, 2 * width, 0.1, "gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.pooler = nn.Linear(width, width)
        self.together = nn.Linear(width, 2)
        self.bias = nn.Parameter(torch.zeros(words))

    def forward(self, tokens: Tensor, segments: Tensor) -> tuple[Tensor, Tensor]:
        places = self.position(torch.arange(tokens.shape[1]))
        x = self.drop(self.norm(self.word(tokens) + places + self.segment(segments)))
        x = self.encoder(x)
        scores = x @ self.word.weight.t() + self.bias
        return scores, self.together(torch.tanh(self.pooler(x[:, 0])))


def pairs(count: int, words: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sentences that repeat one word; pairs of the same word belong together."""
    first = torch.randint(FIRST, words, (count, 1))
    same = torch.randint(0, 2, (count, 1))
    second = torch.where(same.bool(), first, torch.randint(FIRST, words, (count, 1)))
    cls, sep = torch.full((count, 1), CLS), torch.full((count, 1), SEP)
    tokens = torch.cat([cls, first.expand(-1, 4), sep, second.expand(-1, 4)], 1)
    segments = (torch.arange(10) > 5).long().expand(count, -1)
    return tokens, segments, (first == second).long().squeeze(1)


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = Bert(13, size)
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(24):
        tokens, segments, same = pairs(24, 13)
        hidden = (torch.rand(tokens.shape) < 0.25) & (tokens >= FIRST)
        hidden[:, 2] = True
        scores, together = model(tokens.masked_fill(hidden, MASK), segments)
        masked_loss = nn.functional.cross_entropy(scores[hidden], tokens[hidden])
        loss = masked_loss + nn.functional.cross_entropy(together, same)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"loss": losses}
