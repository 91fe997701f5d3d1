"""A bag of words under float16 autocast: accumulation, unscaling before clipping, overflows."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Bag(nn.Module):
    """The mean of embeddings, and a perceptron."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(30, width)
        self.enter, self.leave = nn.Linear(width, 2 * width), nn.Linear(2 * width, 2)

    def forward(self, ids: Tensor) -> Tensor:
        scores: Tensor = self.leave(F.gelu(self.enter(self.words(ids).mean(dim=1))))
        return scores


def train(
    *, seed: int = 0, steps: int = 7, width: int = 16, accumulate: int = 2, clip: float = 1.0
) -> list[float]:
    """Classify sentences by whether most of their words are in the first half of the vocabulary."""
    torch.manual_seed(seed)
    model = Bag(width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-2, weight_decay=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**21, growth_interval=4)
    losses = []
    for _ in range(steps):
        total = 0.0
        for _ in range(accumulate):
            ids = torch.randint(30, (16, 9))
            label = ((ids < 15).sum(dim=1) > 4).long()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(model(ids), label) / accumulate
            scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(total)
    return losses
