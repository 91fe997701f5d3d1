"""A critic with a gradient penalty, which differentiates its own gradient, under dp."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

MICROBATCHES = 4


def train(ctx: Any, twice: bool = True) -> None:
    """Without `twice` the penalty is a constant: its gradient has no graph."""
    critic = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1)).to(ctx.dtype)
    ctx.initialize(critic)
    optimizer = torch.optim.SGD(critic.parameters(), lr=0.01)
    ctx.watch(critic, optimizer)
    for step in range(2):
        with ctx.step():
            for index in ctx.microbatches(MICROBATCHES):
                with ctx.microbatch(index):
                    generator = torch.Generator().manual_seed(99 * step + index)
                    x = torch.randn(4, 6, generator=generator, dtype=torch.float64)
                    x = x.to(ctx.dtype).requires_grad_()
                    score = critic(x)
                    [slope] = torch.autograd.grad(
                        score.sum(), x, create_graph=twice, retain_graph=True
                    )
                    penalty = (slope.norm(dim=-1) - 1).square().mean()
                    loss = (score.mean() + 10 * penalty) / MICROBATCHES
                    ctx.loss(loss)
                    loss.backward()
            for parameter in critic.parameters():
                dist.all_reduce(parameter.grad, group=ctx.group("dp"))
            optimizer.step()
            optimizer.zero_grad()
