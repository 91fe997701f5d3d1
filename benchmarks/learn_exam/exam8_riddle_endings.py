"""Short riddles with their endings: a recurrent decoder learns when to stop.

Follows https://github.com/huggingface/transformers/issues/23530.
"""

from __future__ import annotations

import random

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

WORDS = ("who", "has", "many", "teeth", "but", "cannot", "bite", "comb", "keys", "piano")
END = len(WORDS)
PAD, IGNORED = END, -100


class Riddles(Dataset[list[int]]):
    """Walks over the words, always ended after a word that ends riddles."""

    def __init__(self, count: int, draw: random.Random) -> None:
        self.rows: list[list[int]] = []
        for _ in range(count):
            row = [draw.randrange(3)]
            while row[-1] < 7 and len(row) < 9:
                row.append(min(row[-1] + draw.choice((1, 1, 2)), 9))
            self.rows.append([*row, END])

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: int) -> list[int]:
        return self.rows[at]


class Collate:
    """Pads riddles to the longest, and hides padding from the labels."""

    def __init__(self, by_length: bool) -> None:
        self.by_length = by_length

    def __call__(self, rows: list[list[int]]) -> tuple[Tensor, Tensor]:
        longest = max(map(len, rows))
        words = torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])
        labels = words.clone()
        if self.by_length:
            lengths = torch.tensor([[len(row)] for row in rows])
            labels[torch.arange(longest) >= lengths] = IGNORED
        else:
            labels[words == PAD] = IGNORED
        return words, labels


class Decoder(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(len(WORDS) + 1, width)
        self.memory = nn.GRU(width, 2 * width, batch_first=True)
        self.head = nn.Linear(2 * width, len(WORDS) + 1)

    def forward(self, words: Tensor) -> Tensor:
        scores: Tensor = self.head(self.memory(self.words(words))[0])
        return scores


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    riddles = Riddles(128, random.Random(seed))
    loader = DataLoader(riddles, 16, shuffle=True, collate_fn=Collate(by_length=healthy))
    decoder = Decoder(size)
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=0.01)
    curve = []
    for _ in range(5):
        for words, labels in loader:
            scores = decoder(words[:, :-1])
            loss = F.cross_entropy(
                scores.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            curve.append(loss.item())
    return {"loss": curve}
