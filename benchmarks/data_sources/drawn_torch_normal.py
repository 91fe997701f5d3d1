"""Data-parallel regression on clusters of points that `torch.normal` draws around centres.

Clusters of Gaussian points are the toy data of many courses on classification and regression.
The initial values are drawn by the program too, and equal on all ranks.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from drawn_layers import sum_gradients
from torch import Tensor, nn

from pytest_trainsafe import Context

MICROBATCHES, BATCH, WIDTH = 4, 4, 6


def batch(step: int, index: int) -> tuple[Tensor, Tensor]:
    """Points around centres, and noisy distances from the origin."""
    generator = torch.Generator().manual_seed(17 + 50 * step + index)
    centres = torch.normal(0.0, 1.0, (BATCH, 1), generator=generator).expand(BATCH, WIDTH)
    points = torch.normal(centres, torch.full_like(centres, 0.7), generator=generator)
    distances = torch.normal(points.norm(dim=1, keepdim=True), 0.1, generator=generator)
    return points, distances


def train(ctx: Context, fault: str = "") -> None:
    model = nn.Sequential(nn.Linear(WIDTH, 12), nn.Tanh(), nn.Linear(12, 12), nn.Linear(12, 1))
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.normal(0.0, 0.3, parameter.shape, generator=generator))
    model.to(ctx.device, ctx.dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    ctx.watch(model, optimizer)
    for step in range(2):
        with ctx.step():
            for index in ctx.microbatches(MICROBATCHES):
                with ctx.microbatch(index):
                    x, y = (each.to(ctx.device, ctx.dtype) for each in batch(step, index))
                    x = model[1](model[0](x))
                    if fault == "cast" and ctx.world_size > 1 and x.dtype == torch.float32:
                        x = x.bfloat16().float()  # fault: cast
                    output = model[3](model[2](x))
                    loss = F.mse_loss(output, y)
                    if not (fault == "term" and ctx.world_size > 1):  # fault: term
                        loss = loss + 1e-4 * model[3].weight.square().sum()
                    loss = loss / MICROBATCHES
                    ctx.loss(loss)
                    loss.backward()
            sum_gradients(model, ctx.group("dp"))
            optimizer.step()
            optimizer.zero_grad()
