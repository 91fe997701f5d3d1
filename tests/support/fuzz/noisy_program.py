"""A program whose data is random and not seeded."""

from __future__ import annotations

import torch


def train(ctx, layers=1):
    """One step of linear layers on random data of an unseeded generator."""
    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(layers)))
    model = model.to(ctx.device, ctx.dtype)
    ctx.initialize(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ctx.watch(model, optimizer)
    generator = torch.Generator()
    generator.seed()
    with ctx.step():
        for index in ctx.microbatches(2):
            with ctx.microbatch(index):
                data = torch.randn(2, 4, generator=generator, dtype=torch.float64)
                loss = model(data.to(ctx.dtype)).square().sum()
                ctx.loss(loss)
                loss.backward()
        for parameter in model.parameters():
            torch.distributed.all_reduce(parameter.grad, group=ctx.group("dp"))
        optimizer.step()
