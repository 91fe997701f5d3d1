"""A small program that makes one of the mistakes of users, which its argument selects."""

from __future__ import annotations

import os
import signal
import time
from typing import Any


def train(ctx: Any, steps: int = 1, mistake: str = "") -> None:
    """Train two linear layers over dp, with the mistake that `mistake` names, if any."""
    import torch
    import torch.distributed as dist
    from torch import nn

    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))
    model.to(ctx.device, ctx.dtype)
    ctx.initialize(model)
    if mistake == "nan":
        model.get_parameter("2.weight").data[3, 5] = float("nan")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    nowhere = {"modules": {"no_such_layer": {"output": {"tp_dim": 0}}}}
    annotations = {"annotation": nowhere, "annotation file": "broken.yaml"}.get(mistake)
    ctx.watch(model, optimizer, annotations=annotations)
    if mistake == "no step":
        return
    for step in range(steps):
        with ctx.step():
            for index in ctx.microbatches(2):
                data = torch.Generator().manual_seed(1 if mistake == "same data" else index + 1)
                batch = torch.randn(4, 8, generator=data, dtype=torch.float64).to(ctx.dtype)
                with ctx.microbatch(index):
                    loss = model(batch).square().mean() / 2
                    ctx.loss(loss)
                    loss.backward()
            if ctx.rank == 1:
                _go_wrong(mistake, step)
            operation = dist.ReduceOp.SUM
            if mistake == "operation" and ctx.rank == 1:
                operation = dist.ReduceOp.MAX
            for parameter in model.parameters():
                assert parameter.grad is not None
                if mistake != "not reduced":
                    dist.all_reduce(parameter.grad, operation, group=ctx.group("dp"))
            optimizer.step()
            optimizer.zero_grad()


def _go_wrong(mistake: str, step: int) -> None:
    if mistake == "raise":
        raise ValueError(f"rank 1 does not like step {step}")
    if mistake == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    while mistake == "hang":
        time.sleep(0.1)
