"""Verses that count, first short and then longer, read in pieces by a model with one table."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WORDS, PIECE = 10, 5


class VerseModel(nn.Module):
    """The table of words is the input and, turned, the output."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, width)
        self.memory = nn.LSTM(width, width, batch_first=True)
        self.bias = nn.Parameter(torch.zeros(WORDS))
        nn.init.normal_(self.table.weight, std=width**-0.5)

    def forward(
        self, words: Tensor, state: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        heard, state = self.memory(self.table(words), state)
        return F.linear(heard, self.table.weight, self.bias), state


def verses(n: int, length: int) -> Tensor:
    first, by = torch.randint(WORDS, (n, 1)), torch.randint(1, 3, (n, 1))
    return (first + by * torch.arange(length + 1)) % WORDS


def train(seed: int = 0, size: int = 20) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = VerseModel(size)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.008, momentum=0.5)
    rate = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=1)
    losses = []
    for length in (5, 5, 10, 10, 15, 15):
        seen = []
        for _ in range(4):
            verse, state = verses(12, length), None
            for start in range(0, length, PIECE):
                piece = verse[:, start : start + PIECE + 1]
                if state is not None:
                    state = (state[0].detach(), state[1].detach())
                scores, state = model(piece[:, :-1], state)
                loss = F.cross_entropy(scores.transpose(1, 2), piece[:, 1:])
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                seen.append(loss.item())
        rate.step(sum(seen) / len(seen))
        losses += seen
    return {"loss": losses}
