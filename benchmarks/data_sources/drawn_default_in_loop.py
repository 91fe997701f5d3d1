"""A tensor-parallel MLP; initial values and samples come from torch's default generator.

The common script: `torch.manual_seed` once at the top, then `torch.randn` wherever numbers are
needed. Each rank draws the whole weights and keeps its part of them, and all draw the same samples.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from drawn_layers import MLP_LAYOUTS, ParallelMLP

from pytest_trainsafe import Context

MICROBATCHES, BATCH, WIDTH, INNER = 2, 4, 8, 16


def train(ctx: Context, fault: str = "") -> None:
    torch.manual_seed(1234)
    model = ParallelMLP(WIDTH, INNER, WIDTH, ctx.group("tp"))
    model.up.load(torch.randn(INNER, WIDTH) / WIDTH**0.5, 0.1 * torch.randn(INNER))
    model.down.load(torch.randn(WIDTH, INNER) / INNER**0.5, 0.1 * torch.randn(WIDTH))
    model.to(ctx.device, ctx.dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ctx.watch(model, optimizer, annotations=MLP_LAYOUTS)
    for _ in range(2):
        with ctx.step():
            for index in ctx.microbatches(MICROBATCHES):
                with ctx.microbatch(index):
                    x = torch.randn(BATCH, WIDTH).to(ctx.device, ctx.dtype)
                    y = torch.randn(BATCH, WIDTH).to(ctx.device, ctx.dtype)
                    x = model(x)
                    if fault == "cast" and ctx.world_size > 1 and x.dtype == torch.float32:
                        x = x.bfloat16().float()  # fault: cast
                    loss = F.mse_loss(x, y)
                    if not (fault == "term" and ctx.world_size > 1):  # fault: term
                        loss = loss + 1e-4 * x.square().mean()
                    loss = loss / MICROBATCHES
                    ctx.loss(loss)
                    loss.backward()
            optimizer.step()
            optimizer.zero_grad()
