"""Learns the notes of melodies, sharded, in windows of micro-batches that are reduced once."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

WINDOW, NOTES = 3, 9


class Melody(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.notes = nn.Embedding(NOTES, dim)
        self.layers = nn.ModuleList(nn.Linear(dim, dim) for _ in range(2))
        self.next = nn.Linear(dim, NOTES)

    def forward(self, played: Tensor) -> Tensor:
        h = self.notes(played)
        for layer in self.layers:
            h = h + torch.relu(layer(h))
        logits: Tensor = self.next(h)
        return logits


def played(seed: int, number: int) -> Tensor:
    g = torch.Generator().manual_seed(
        seed * 9_973 + number * dist.get_world_size() + dist.get_rank()
    )
    start = torch.randint(NOTES, (8, 1), generator=g)
    return (start * 2 ** torch.arange(6)) % NOTES


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    melody = Melody(size)
    for layer in melody.layers:
        fully_shard(layer)
    fully_shard(melody)
    assert isinstance(melody, FSDPModule)
    optimizer = torch.optim.AdamW(melody.parameters(), lr=2e-2)
    losses, norms = [], []
    for window in range(16):
        optimizer.zero_grad()
        total = 0.0
        for micro in range(WINDOW):
            last = micro == WINDOW - 1
            melody.set_requires_gradient_sync(last)
            tune = played(seed, window * WINDOW + micro)
            logits = melody(tune[:, :-1]).flatten(0, 1)
            loss = nn.functional.cross_entropy(logits, tune[:, 1:].flatten()) / WINDOW
            loss.backward()
            total += loss.item()
        norm = nn.utils.clip_grad_norm_(melody.parameters(), 1.0)
        norms.append((norm.full_tensor() if isinstance(norm, DTensor) else norm).item())
        optimizer.step()
        losses.append(total)
    return {"loss": losses, "norm": norms}
