"""A data-parallel MLP in a script that sets torch's default dtype to float64.

Scientific scripts do so to have all numbers in double precision; the model has the dtype of the
training nevertheless. Its gradients get noise, as in stochastic gradient Langevin dynamics
(Welling and Teh, 2011), which is drawn for each step and is the same on all ranks.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from drawn_layers import sum_gradients
from torch import Tensor, nn

from pytest_trainsafe import Context

MICROBATCHES, BATCH, WIDTH = 4, 4, 6


def batch(step: int, index: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets, in the default dtype."""
    generator = torch.Generator().manual_seed(300 + 10 * step + index)
    x = torch.randn(BATCH, WIDTH, generator=generator)
    return x, x.prod(1, keepdim=True) + torch.rand(BATCH, 1, generator=generator)


def train(ctx: Context, fault: str = "") -> None:
    torch.set_default_dtype(torch.float64)
    model = nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, 1))
    model.to(ctx.device, ctx.dtype)
    ctx.initialize(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    ctx.watch(model, optimizer)
    for step in range(2):
        with ctx.step():
            for index in ctx.microbatches(MICROBATCHES):
                with ctx.microbatch(index):
                    x, y = (each.to(ctx.device, ctx.dtype) for each in batch(step, index))
                    x = model[1](model[0](x))
                    if fault == "cast" and ctx.world_size > 1 and x.dtype == torch.float32:
                        x = x.bfloat16().float()  # fault: cast
                    loss = F.mse_loss(model[2](x), y) / MICROBATCHES
                    ctx.loss(loss)
                    loss.backward()
            sum_gradients(model, ctx.group("dp"))
            if not (fault == "term" and ctx.world_size > 1):  # fault: term
                noise = torch.Generator().manual_seed(step)
                for parameter in model.parameters():
                    drawn = torch.randn(parameter.shape, generator=noise)
                    parameter.grad.add_(drawn.to(ctx.device, ctx.dtype), alpha=1e-4)
            optimizer.step()
            optimizer.zero_grad()
