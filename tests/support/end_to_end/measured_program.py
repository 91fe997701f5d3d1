"""A small data-parallel program whose data come from generators of its own, with faults."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn


class Model(nn.Module):
    """Two layers; with `quantised`, the first one's inputs are rounded to a grid of halves."""

    def __init__(self, quantised: bool) -> None:
        super().__init__()
        self.quantised = quantised
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)

    def forward(self, x: torch.Tensor, cast: bool = False) -> torch.Tensor:
        if self.quantised:
            # Inputs are multiples of a quarter: half of them lie between two points of the grid.
            x = x + ((2 * x).round() / 2 - x).detach()
        hidden = torch.tanh(self.up(x))
        if cast and hidden.dtype == torch.float32:
            hidden = hidden.bfloat16().float()
        return self.down(hidden)


def train(
    ctx: Any, source: str = "own", fault: str = "", quantised: bool = False, average: bool = False
) -> None:
    """Two steps of four micro-batches.

    `source` is "own" for a generator that draws without a dtype, or "unseeded" for NumPy noise
    without a seed.  `fault` acts on several ranks only: "cast" rounds the hidden layer to bfloat16
    in float32, "bias" multiplies a gradient by 1.01.  `average` keeps an average of the weights.
    """
    fault = fault if ctx.world_size > 1 else ""
    model = Model(quantised).to(ctx.device, ctx.dtype)
    ctx.initialize(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ctx.watch(model, optimizer)
    noise = np.random.default_rng()
    mean = torch.optim.swa_utils.AveragedModel(model) if average else None
    for step in range(2):
        with ctx.step():
            for index in ctx.microbatches(4):
                with ctx.microbatch(index):
                    generator = torch.Generator().manual_seed(100 * step + index)
                    x = torch.randn(4, 8, generator=generator).to(ctx.dtype)
                    if quantised:
                        x = (4 * x).round() / 4
                    if source == "unseeded":
                        x = x + 0.01 * torch.tensor(noise.standard_normal(x.shape)).to(x)
                    y = torch.randn(4, 8, generator=generator).to(ctx.dtype)
                    loss = (model(x, fault == "cast") - y).square().mean() / 4
                    ctx.loss(loss)
                    loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, group=ctx.group("dp"))
            if fault == "bias" and model.down.bias.grad is not None:
                model.down.bias.grad.mul_(1.01)
            optimizer.step()
            optimizer.zero_grad()
            if mean is not None:
                mean.update_parameters(model)
