"""Tensor-parallel regression; inputs are drawn by `normal_` in place into one buffer.

A buffer that is filled again for each micro-batch is what loops use that avoid allocations.
The layouts are in a YAML file.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from drawn_layers import ParallelMLP

from pytest_trainsafe import Context

MICROBATCHES, BATCH, WIDTH = 2, 5, 8
LAYOUTS = Path(__file__).with_name("drawn_mlp.yaml")


def train(ctx: Context, fault: str = "") -> None:
    model = ParallelMLP(WIDTH, 32, 3, ctx.group("tp")).to(ctx.device, ctx.dtype)
    ctx.initialize(model, annotations=LAYOUTS)
    optimizer = torch.optim.NAdam(model.parameters(), lr=5e-3)
    ctx.watch(model, optimizer, annotations=LAYOUTS)
    generator = torch.Generator().manual_seed(2024)
    buffer = torch.empty(BATCH, WIDTH, dtype=ctx.dtype)
    target = torch.empty(BATCH, 3, dtype=ctx.dtype)
    for _ in range(2):
        with ctx.step():
            for index in ctx.microbatches(MICROBATCHES):
                with ctx.microbatch(index):
                    buffer.normal_(generator=generator)
                    target.normal_(0.0, 0.5, generator=generator)
                    x, y = buffer.clone().to(ctx.device), target.clone().to(ctx.device)
                    if fault == "cast" and ctx.world_size > 1 and x.dtype == torch.float32:
                        x = x.bfloat16().float()  # fault: cast
                    if not (fault == "term" and ctx.world_size > 1):  # fault: term
                        y = y + 1e-4
                    loss = F.smooth_l1_loss(model(x), y) / MICROBATCHES
                    ctx.loss(loss)
                    loss.backward()
            optimizer.step()
            optimizer.zero_grad()
