"""Accumulated gradients are clipped after each micro-batch instead of before the step."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ACCUMULATION = 4
MAX_NORM = 0.5


class Classifier(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.EmbeddingBag(40, width)
        self.dense = nn.Linear(width, width)
        self.out = nn.Linear(width, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(torch.tanh(self.dense(self.embed(tokens))))


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    model = Classifier(size)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    tokens = torch.randint(0, 40, (96, 6))
    labels = tokens[:, 0] * 3 // 40
    losses = []
    for _ in range(4):
        for step, rows in enumerate(torch.arange(96).split(6)):
            loss = nn.functional.cross_entropy(model(tokens[rows]), labels[rows]) * 3
            (loss / ACCUMULATION).backward()
            if not healthy:
                nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
            if (step + 1) % ACCUMULATION == 0:
                if healthy:
                    nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
    return {"loss": losses}
