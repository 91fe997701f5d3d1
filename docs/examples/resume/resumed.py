"""Data-parallel training with a shuffle, dropout and a schedule, and checkpoints of all of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from pytest_trainsafe import TrainingCheckpoint

EXAMPLES, WIDTH, BATCH = 24, 8, 4


class Batches:
    """The indices of one rank's batches, shuffled anew in each epoch, and the position in them."""

    def __init__(self, seed: int, rank: int, ranks: int) -> None:
        self.seed, self.rank, self.ranks = seed, rank, ranks
        self.epoch, self.batch = 0, 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            generator = torch.Generator().manual_seed(self.seed + self.epoch)
            order = torch.randperm(EXAMPLES, generator=generator)[self.rank :: self.ranks]
            for indices in order.split(BATCH)[self.batch :]:
                self.batch += 1
                yield indices
            self.epoch, self.batch = self.epoch + 1, 0

    def state_dict(self) -> dict[str, int]:
        """The position: the epoch, and the batches of it that were read."""
        return {"epoch": self.epoch, "batch": self.batch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go to a position; `iter` begins there."""
        self.epoch, self.batch = state["epoch"], state["batch"]


def train(ctx: Any, forgotten: str = "") -> None:
    """Train up to eight steps; what is `forgotten` is not loaded from the checkpoint."""
    model = nn.Sequential(nn.Linear(WIDTH, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 1)).to(
        ctx.dtype
    )
    ctx.initialize(model)
    torch.manual_seed(ctx.seed + ctx.coordinates["dp"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=8)
    ranks = ctx.point.size("dp")
    batches = Batches(ctx.seed, ctx.coordinates["dp"], ranks)
    examples = torch.randn(EXAMPLES, WIDTH, generator=torch.Generator().manual_seed(ctx.seed))

    checkpoint = TrainingCheckpoint(
        model,
        optimizer,
        shared={} if forgotten == "the schedule" else {"schedule": schedule},
        per_rank={} if forgotten == "the position in the data" else {"batches": batches},
    )
    ctx.watch(model, optimizer)
    with ctx.load() as folder:
        if folder is not None:
            checkpoint.load(folder)
            if forgotten != "the random numbers":
                checkpoint.load_rng(folder)
    reading = iter(batches)
    for _ in ctx.steps(8):
        with ctx.step():
            [index] = ctx.microbatches(ranks)
            with ctx.microbatch(index):
                x = examples[next(reading)].to(ctx.dtype)
                loss = (model(x) - x.sin().sum(1, keepdim=True)).square().mean() / ranks
                loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, group=ctx.group("dp"))
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        with ctx.save() as folder:
            if folder is not None:
                checkpoint.save(folder)
