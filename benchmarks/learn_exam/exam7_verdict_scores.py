"""Scores of answers of many lengths, from pairs of which one is preferred.

Follows https://github.com/huggingface/trl/issues/2778.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

PAD, WORDS, LONGEST = 0, 15, 12


class PaddingCollator:
    """Makes answers of unequal lengths as long as the longest of them."""

    def __init__(self, side: str) -> None:
        self.side = side

    def __call__(self, answers: list[Tensor]) -> Tensor:
        longest = max(map(len, answers))
        gaps = [longest - len(answer) for answer in answers]
        pads = [(gap, 0) if self.side == "left" else (0, gap) for gap in gaps]
        return torch.stack(
            [F.pad(answer, pad, value=PAD) for answer, pad in zip(answers, pads, strict=True)]
        )


class ScoreModel(nn.Module):
    """Reads an answer word by word; the state after its last word gives the score."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width, padding_idx=PAD)
        self.reader = nn.GRU(width, width, batch_first=True)
        self.score = nn.Linear(width, 1, bias=False)

    def forward(self, text: Tensor) -> Tensor:
        states, _ = self.reader(self.words(text))
        last = (text != PAD).sum(1) - 1
        return self.score(states[torch.arange(len(text)), last]).squeeze(1)


def answer(quality: Tensor) -> tuple[Tensor, float]:
    words = torch.randint(1, WORDS, (int(torch.randint(4, LONGEST + 1, ())),))
    return words, quality[words].sum().item()


def preferences(n: int, quality: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    chosen, rejected = [], []
    for _ in range(n):
        ranked = sorted((answer(quality) for _ in range(2)), key=lambda each: each[1])
        rejected.append(ranked[0][0])
        chosen.append(ranked[1][0])
    return chosen, rejected


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    quality = torch.randn(WORDS)
    collate = PaddingCollator("right" if healthy else "left")
    model = ScoreModel(size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=45)
    losses = []
    for _ in range(45):
        chosen, rejected = preferences(24, quality)
        scores = model(collate(chosen + rejected))
        margin = scores[: len(chosen)] - scores[len(chosen) :]
        loss = -F.logsigmoid(margin).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return {"loss": losses}
