"""Replicas gather gradients over three small batches, and over the one that is left at the end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as Replicated

SMALL, TOGETHER, PER_EPOCH = 6, 3, 7

Pair = tuple[Tensor, Tensor]


def windows(batches: list[Pair]) -> Iterator[list[Pair]]:
    for start in range(0, len(batches), TOGETHER):
        yield batches[start : start + TOGETHER]


class GatheringTrainer:
    def __init__(self, model: nn.Module) -> None:
        self.model = Replicated(model, gradient_as_bucket_view=True)
        self.optimizer = torch.optim.NAdam(self.model.parameters(), lr=0.01)

    def step(self, window: list[Pair]) -> float:
        examples = sum(len(y) for _, y in window)
        self.optimizer.zero_grad(set_to_none=False)
        total = 0.0
        for at, (x, y) in enumerate(window):
            last = at == len(window) - 1
            with contextlib.nullcontext() if last else self.model.no_sync():
                loss = nn.functional.cross_entropy(self.model(x), y, reduction="sum") / examples
                loss.backward()
            total += loss.item()
        self.optimizer.step()
        return total


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    law = torch.randn(8, 3)
    trainer = GatheringTrainer(
        nn.Sequential(nn.Linear(8, size), nn.LayerNorm(size), nn.Mish(), nn.Linear(size, 3))
    )
    source = torch.Generator().manual_seed(2 * seed + dist.get_rank())
    curve = []
    for _ in range(10):
        batches = []
        for _ in range(PER_EPOCH):
            x = torch.randn(SMALL, 8, generator=source)
            batches.append((x, (x @ law).argmax(1)))
        curve += [trainer.step(window) for window in windows(batches)]
    return {"loss": curve}
