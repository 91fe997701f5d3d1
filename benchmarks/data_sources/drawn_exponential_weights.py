"""Data-parallel regression; each sample has a weight that is drawn by `exponential_`.

Exponential weights are those of the Bayesian bootstrap (Rubin, 1981). The default generator is
drawn in the loop: each rank draws all micro-batches, and leaves out those of other ranks.
"""

from __future__ import annotations

import torch
from drawn_layers import sum_gradients
from torch import nn

from pytest_trainsafe import Context

MICROBATCHES, BATCH, WIDTH = 4, 4, 8


def train(ctx: Context, fault: str = "") -> None:
    model = nn.Sequential(nn.Linear(WIDTH, 16), nn.Softplus(), nn.Linear(16, 1))
    model.to(ctx.device, ctx.dtype)
    ctx.initialize(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ctx.watch(model, optimizer)
    torch.manual_seed(31)
    for _ in range(2):
        with ctx.step():
            mine = set(ctx.microbatches(MICROBATCHES))
            for index in range(MICROBATCHES):
                samples = torch.randn(BATCH, WIDTH)
                weights = torch.empty(BATCH, 1).exponential_()
                if index not in mine:
                    continue
                with ctx.microbatch(index):
                    x = samples.to(ctx.device, ctx.dtype)
                    y = x.sum(1, keepdim=True).sin()
                    weight = weights.to(ctx.device, ctx.dtype)
                    x = model(x)
                    if fault == "cast" and ctx.world_size > 1 and x.dtype == torch.float32:
                        x = x.bfloat16().float()  # fault: cast
                    if not (fault == "term" and ctx.world_size > 1):  # fault: term
                        weight = weight + 1e-4
                    loss = (weight * (x - y).square()).sum() / (MICROBATCHES * BATCH)
                    ctx.loss(loss)
                    loss.backward()
            sum_gradients(model, ctx.group("dp"))
            optimizer.step()
            optimizer.zero_grad()
