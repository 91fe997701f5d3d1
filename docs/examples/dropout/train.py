"""Data-parallel training with dropout, each rank with random numbers of its own."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

BATCH, WIDTH = 4, 16


class Model(nn.Module):
    """Two layers with dropout between them."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.drop = nn.Dropout(0.1)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down(self.drop(torch.relu(self.up(x))))
        return out


def train(ctx: Any, one_seed: bool = False) -> None:
    """Train two steps of four micro-batches; `one_seed` is the mistake that the test looks for."""
    model = Model()
    ctx.initialize(model)
    torch.manual_seed(ctx.seed + (0 if one_seed else ctx.coordinates["dp"]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ctx.watch(model, optimizer)
    for step in range(2):
        with ctx.step():
            for index in ctx.microbatches(4):
                with ctx.microbatch(index):
                    (model(batch(ctx, step, index)).square().mean() / 4).backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, group=ctx.group("dp"))
            optimizer.step()
            optimizer.zero_grad()


def batch(ctx: Any, step: int, index: int) -> torch.Tensor:
    """A micro-batch that is the same on whatever rank computes it."""
    generator = torch.Generator().manual_seed(1000 * step + index)
    return torch.randn(BATCH, WIDTH, generator=generator).to(ctx.dtype)
