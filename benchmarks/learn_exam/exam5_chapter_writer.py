"""A character model that writes chapters; the rate is set by hand before each step."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

TEXT = "the tide came in and the tide went out and the boats swung on their chains until dusk. " * 6
PEAK, FLOOR, WARMUP, STEPS = 1e-2, 1e-4, 8, 60


class Writer(nn.Module):
    def __init__(self, letters: int, width: int) -> None:
        super().__init__()
        self.emb = nn.Embedding(letters, width)
        self.mix = nn.Conv1d(width, width, 5, padding=4)
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, letters)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.emb(ids)
        mixed = self.mix(h.transpose(1, 2))[..., : ids.shape[1]].transpose(1, 2)
        logits: Tensor = self.out(self.norm(h + torch.relu(mixed)))
        return logits


def rate_at(step: int) -> float:
    if step < WARMUP:
        return PEAK * (step + 1) / WARMUP
    share = (step - WARMUP) / (STEPS - WARMUP)
    return FLOOR + (PEAK - FLOOR) * 0.5 * (1 + math.cos(math.pi * share))


def train(healthy: bool = True, seed: int = 0, size: int = 24) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    letters = sorted(set(TEXT))
    ids = torch.tensor([letters.index(c) for c in TEXT])
    writer = Writer(len(letters), size)
    matrices = [p for p in writer.parameters() if p.ndim >= 2]
    vectors = [p for p in writer.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}],
        lr=rate_at(0),
    )
    losses = []
    for step in range(STEPS):
        lr = rate_at(step)
        for group in optimizer.param_groups:
            if healthy:
                group["lr"] = lr
        group["lr"] = lr
        starts = torch.randint(0, len(ids) - 25, (16,))
        window = torch.stack([ids[s : s + 25] for s in starts])
        logits = writer(window[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(writer.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return {"loss": losses}
