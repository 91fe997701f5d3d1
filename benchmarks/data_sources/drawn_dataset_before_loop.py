"""Data-parallel regression; the whole data set is drawn from one generator before the first step.

This is how small examples make a data set: drawn once, kept in memory, and cut into micro-batches.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from drawn_layers import sum_gradients
from torch import nn

from pytest_trainsafe import Context

STEPS, MICROBATCHES, BATCH, WIDTH = 2, 4, 3, 8


def train(ctx: Context, fault: str = "") -> None:
    generator = torch.Generator()
    generator.manual_seed(42)
    shape = (STEPS, MICROBATCHES, BATCH, WIDTH)
    inputs = torch.randn(shape, generator=generator, dtype=torch.float32).to(ctx.dtype)
    targets = torch.randn(shape, generator=generator, dtype=torch.float32).to(ctx.dtype)

    model = nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, WIDTH))
    model.to(ctx.device, ctx.dtype)
    ctx.initialize(model)
    decay = 0.0 if fault == "term" and ctx.world_size > 1 else 1e-4  # fault: term
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=decay)
    ctx.watch(model, optimizer)
    for step in range(STEPS):
        with ctx.step():
            for index in ctx.microbatches(MICROBATCHES):
                with ctx.microbatch(index):
                    x, y = inputs[step, index].to(ctx.device), targets[step, index].to(ctx.device)
                    x = model(x)
                    if fault == "cast" and ctx.world_size > 1 and x.dtype == torch.float32:
                        x = x.bfloat16().float()  # fault: cast
                    loss = F.mse_loss(x, y) / MICROBATCHES
                    ctx.loss(loss)
                    loss.backward()
            sum_gradients(model, ctx.group("dp"))
            optimizer.step()
            optimizer.zero_grad()
