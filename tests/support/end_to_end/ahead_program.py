"""Trains one layer and logs its tag and Point; given a pipe, it writes its process id and hangs."""

from __future__ import annotations

import os
import time
from typing import Any


def train(ctx: Any, log: str = "", tag: str = "first", wanted: str = "", pipe: str = "") -> None:
    import torch

    if os.environ.get("WANTED", "") != wanted:
        raise AssertionError(f"WANTED is {os.environ.get('WANTED')!r}, not {wanted!r}")
    if ctx.rank == 0:
        with open(log, "a") as file:
            file.write(f"{tag} {ctx.point.id}\n")
    while pipe and ctx.world_size > 1:
        if ctx.rank == 0:
            with open(pipe, "w") as file:
                file.write(str(os.getpid()))
        time.sleep(3600)
    model = torch.nn.Linear(3, 2).to(ctx.dtype)
    ctx.initialize(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ctx.watch(model, optimizer)
    with ctx.step():
        for index in ctx.microbatches(4):
            with ctx.microbatch(index):
                inputs = torch.arange(6.0, dtype=ctx.dtype).view(2, 3) + index
                loss = model(inputs).square().sum() / 4
                ctx.loss(loss)
                loss.backward()
        if ctx.world_size > 1:
            for parameter in model.parameters():
                torch.distributed.all_reduce(parameter.grad, group=ctx.group("dp"))
        optimizer.step()
        optimizer.zero_grad()
