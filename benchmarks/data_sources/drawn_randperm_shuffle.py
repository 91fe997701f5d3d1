"""Data-parallel classification; the data set is shuffled by `torch.randperm` in each epoch.

Loops without a DataLoader shuffle like this: a permutation of all samples, cut into micro-batches.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from drawn_layers import sum_gradients
from torch import nn

from pytest_trainsafe import Context

SAMPLES, BATCH, WIDTH, CLASSES = 16, 4, 8, 3
MICROBATCHES = SAMPLES // BATCH


def train(ctx: Context, fault: str = "") -> None:
    generator = torch.Generator().manual_seed(3)
    data = torch.randn(SAMPLES, WIDTH, generator=generator, dtype=torch.float32)
    labels = torch.randint(CLASSES, (SAMPLES,), generator=generator)
    data = data.to(ctx.device, ctx.dtype)
    labels = labels.to(ctx.device)

    model = nn.Sequential(nn.Linear(WIDTH, 16), nn.GELU(), nn.Linear(16, CLASSES))
    model.to(ctx.device, ctx.dtype)
    ctx.initialize(model)
    optimizer = torch.optim.NAdam(model.parameters(), lr=1e-2)
    ctx.watch(model, optimizer)
    smooth = 0.0 if fault == "term" and ctx.world_size > 1 else 3e-4  # fault: term
    for _ in range(2):
        order = torch.randperm(SAMPLES, generator=generator).view(MICROBATCHES, BATCH)
        with ctx.step():
            for index in ctx.microbatches(MICROBATCHES):
                with ctx.microbatch(index):
                    chosen = order[index].to(ctx.device)
                    x = data[chosen]
                    if fault == "cast" and ctx.world_size > 1 and x.dtype == torch.float32:
                        x = x.bfloat16().float()  # fault: cast
                    loss = F.cross_entropy(model(x), labels[chosen], label_smoothing=smooth)
                    loss = loss / MICROBATCHES
                    ctx.loss(loss)
                    loss.backward()
            sum_gradients(model, ctx.group("dp"))
            optimizer.step()
            optimizer.zero_grad()
