"""A training script that gets its context from `context()`, and also runs without pytest."""

import argparse

import torch
import torch.distributed as dist

import pytest_trainsafe

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--forget-reduction", action="store_true")
arguments = parser.parse_args()

ctx = pytest_trainsafe.context()
model = torch.nn.Linear(4, 4).to(ctx.device, ctx.dtype)
ctx.initialize(model)
optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr)
ctx.watch(model, optimizer)
with ctx.step():
    for index in ctx.microbatches(2):
        data = torch.arange(8, dtype=ctx.dtype).reshape(2, 4) / 8 + index
        with ctx.microbatch(index):
            loss = model(data).square().mean()
            ctx.loss(loss)
            loss.backward()
    if ctx.world_size > 1 and not arguments.forget_reduction:
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, group=ctx.group("dp"))
    optimizer.step()
print(f"trained on rank {ctx.rank}")
