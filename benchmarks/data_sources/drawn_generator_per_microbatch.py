"""Regression with a tensor-parallel MLP; each micro-batch has a generator of its own.

The idea is that of the notes on reproducibility in PyTorch's documentation: a seed for each thing
that is drawn, so that no draw depends on those before it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from drawn_layers import MLP_LAYOUTS, ParallelMLP
from torch import Tensor

from pytest_trainsafe import Context

MICROBATCHES, BATCH, WIDTH = 3, 4, 8


def batch(step: int, index: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets, in torch's default dtype."""
    generator = torch.Generator().manual_seed(1000 * step + index)
    x = torch.randn(BATCH, WIDTH, generator=generator)
    y = torch.randn(BATCH, WIDTH, generator=generator)
    return x, y


def train(ctx: Context, fault: str = "") -> None:
    model = ParallelMLP(WIDTH, 16, WIDTH, ctx.group("tp")).to(ctx.device, ctx.dtype)
    ctx.initialize(model, annotations=MLP_LAYOUTS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ctx.watch(model, optimizer, annotations=MLP_LAYOUTS)
    for step in range(2):
        with ctx.step():
            for index in ctx.microbatches(MICROBATCHES):
                with ctx.microbatch(index):
                    x, y = (each.to(ctx.device, ctx.dtype) for each in batch(step, index))
                    if fault == "cast" and ctx.world_size > 1 and x.dtype == torch.float32:
                        x = x.bfloat16().float()  # fault: cast
                    prediction = model(x)
                    if not (fault == "term" and ctx.world_size > 1):  # fault: term
                        prediction = prediction + 1e-4 * x
                    loss = F.mse_loss(prediction, y) / MICROBATCHES
                    ctx.loss(loss)
                    loss.backward()
            optimizer.step()
            optimizer.zero_grad()
