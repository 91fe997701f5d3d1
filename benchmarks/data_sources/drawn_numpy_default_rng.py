"""Tensor-parallel regression; samples come from a NumPy generator for each micro-batch.

NumPy's documentation recommends `default_rng` with a sequence of numbers as the seed, here the
seed of the data, the step and the micro-batch.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from drawn_layers import MLP_LAYOUTS, ParallelMLP
from torch import Tensor, nn

from pytest_trainsafe import Context

MICROBATCHES, BATCH, WIDTH = 2, 5, 8


class Regression(nn.Module):
    """A tensor-parallel MLP between two norms."""

    def __init__(self, ctx: Context) -> None:
        super().__init__()
        self.mlp = ParallelMLP(WIDTH, 16, WIDTH, ctx.group("tp"))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.mlp(x)))


def batch(ctx: Context, step: int, index: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets, which NumPy draws in float64."""
    rng = np.random.default_rng([2023, step, index])
    x = rng.standard_normal((BATCH, WIDTH))
    y = np.cos(x[:, :1]) + 0.1 * rng.standard_normal((BATCH, 1))
    return tuple(torch.from_numpy(each).to(ctx.device, ctx.dtype) for each in (x, y))


def train(ctx: Context, fault: str = "") -> None:
    model = Regression(ctx).to(ctx.device, ctx.dtype)
    ctx.initialize(model, annotations=MLP_LAYOUTS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ctx.watch(model, optimizer, annotations=MLP_LAYOUTS)
    for step in range(2):
        with ctx.step():
            for index in ctx.microbatches(MICROBATCHES):
                with ctx.microbatch(index):
                    x, y = batch(ctx, step, index)
                    if fault == "cast" and ctx.world_size > 1 and x.dtype == torch.float32:
                        x = x.bfloat16().float()  # fault: cast
                    if not (fault == "term" and ctx.world_size > 1):  # fault: term
                        x = x + 1e-4 * x.square()
                    loss = F.mse_loss(model(x), y) / MICROBATCHES
                    ctx.loss(loss)
                    loss.backward()
            optimizer.step()
            optimizer.zero_grad()
