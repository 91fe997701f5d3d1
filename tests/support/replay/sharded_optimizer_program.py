"""A training of dp ranks whose optimizer states are sharded by torch's ZeroRedundancyOptimizer."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

WIDTH, STEPS = 4, 4


def train(ctx: Any, fault: str = "") -> None:
    """Train with Adam, whose states rank 0 collects and saves; every rank loads its own."""
    # The import warns of a deprecation, which is an error where pytest imports this file.
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1))
    ctx.initialize(model)
    _ = ctx.mesh
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.Adam, lr=0.01, foreach=False
    )
    ctx.watch(model, optimizer)
    with ctx.load() as folder:
        if folder is not None:
            weights, state = torch.load(folder / "state.pt")
            model.load_state_dict(weights)
            if fault == "shard of rank 1" and ctx.rank == 1:
                state["state"] = {}
            if fault == "steps of rank 1" and ctx.rank == 1:
                for held in state["state"].values():
                    held["step"].zero_()
            optimizer.load_state_dict(state)
    for step in ctx.steps(STEPS):
        with ctx.step():
            for index in ctx.microbatches(2):
                with ctx.microbatch(index):
                    x = torch.linspace(-index, step + 1, WIDTH, dtype=ctx.dtype)
                    loss = model(x[None]).square().mean()
                    loss.backward()
                    ctx.loss(loss)
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, group=ctx.group("dp"))
            optimizer.step()
            optimizer.zero_grad()
        with ctx.save() as folder:
            if folder is not None:
                optimizer.consolidate_state_dict(to=0)
                if ctx.rank == 0:
                    torch.save([model.state_dict(), optimizer.state_dict()], folder / "state.pt")
