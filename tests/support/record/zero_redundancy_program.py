"""A training of dp ranks with torch's ZeroRedundancyOptimizer, in which a fault can be planted.

With "unsent", the ranks do not send the parameters that they updated; with "forgotten", the rank
that has a bias's moments clears one of them after each step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(ctx: Any, zero: int = 0, bug: str = "") -> None:
    """Train an MLP for two steps of four micro-batches."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 4)).to(ctx.dtype)
    ctx.initialize(model)
    group = ctx.group("dp")
    wrapped = DistributedDataParallel(model, process_group=group)
    optimizer: Any = ZeroRedundancyOptimizer(
        wrapped.parameters(), torch.optim.AdamW, process_group=group, lr=1e-2
    )
    if bug == "unsent":
        optimizer._sync_params = lambda: None
    ctx.watch(model, optimizer)
    generator = torch.Generator().manual_seed(3)
    for _ in range(2):
        data = torch.randn(4, 5, 6, generator=generator, dtype=torch.float64).to(ctx.dtype)
        with ctx.step():
            for index in ctx.microbatches(4):
                with ctx.microbatch(index):
                    loss = wrapped(data[index]).square().mean()
                    ctx.loss(loss)
                    (loss * ctx.point.size("dp") / 4).backward()
            optimizer.step()
            held = optimizer.optim.state.get(model[0].bias)
            if bug == "forgotten" and held:
                held["exp_avg"].zero_()
            optimizer.zero_grad()
