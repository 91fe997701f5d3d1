"""Data-parallel linear regression on x @ w + b with noise.

The first example of the book "Dive into Deep Learning", with one linear layer and plain SGD.
"""

from __future__ import annotations

import torch
from drawn_layers import sum_gradients
from torch import Tensor, nn

from pytest_trainsafe import Context

SAMPLES, BATCH, WIDTH = 32, 8, 4
MICROBATCHES = SAMPLES // BATCH


def synthetic_data(w: Tensor, b: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Inputs, and x @ w + b with noise."""
    x = torch.normal(0, 1, (SAMPLES, len(w)), generator=generator)
    y = x @ w + b
    y += torch.normal(0, 0.01, y.shape, generator=generator)
    return x, y.reshape(-1, 1)


def train(ctx: Context, fault: str = "") -> None:
    generator = torch.Generator().manual_seed(1)
    features, labels = synthetic_data(torch.tensor([2.0, -3.4, 0.7, 1.1]), 4.2, generator)
    model = nn.Linear(WIDTH, 1).to(ctx.device, ctx.dtype)
    ctx.initialize(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
    ctx.watch(model, optimizer)
    for _ in range(2):
        with ctx.step():
            for index in ctx.microbatches(MICROBATCHES):
                with ctx.microbatch(index):
                    mine = slice(index * BATCH, (index + 1) * BATCH)
                    x = features[mine].to(ctx.device, ctx.dtype)
                    y = labels[mine].to(ctx.device, ctx.dtype)
                    if fault == "cast" and ctx.world_size > 1 and x.dtype == torch.float32:
                        x = x.bfloat16().float()  # fault: cast
                    loss = (model(x) - y).square().sum() / (2 * SAMPLES)
                    if not (fault == "term" and ctx.world_size > 1):  # fault: term
                        penalty = model.weight.square().sum() + model.bias.square().sum()
                        loss = loss + 1e-3 * penalty / MICROBATCHES
                    ctx.loss(loss)
                    loss.backward()
            sum_gradients(model, ctx.group("dp"))
            optimizer.step()
            optimizer.zero_grad()
