"""DistributedDataParallel; the data set comes from torch's default generator before the loop.

The toy scripts of PyTorch's tutorials on DistributedDataParallel draw their samples like this.
Each rank draws all samples and trains on its share of the micro-batches.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pytest_trainsafe import Context

MICROBATCHES, BATCH, WIDTH = 4, 4, 10
ANNOTATIONS = {"loss": {"mean": ["dp"]}}


def train(ctx: Context, fault: str = "") -> None:
    model = nn.Sequential(nn.Linear(WIDTH, 16), nn.SiLU(), nn.Linear(16, 5))
    model.to(ctx.device, ctx.dtype)
    ctx.initialize(model)
    wrapped = DistributedDataParallel(model, process_group=ctx.group("dp"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    ctx.watch(wrapped, optimizer, annotations=ANNOTATIONS)

    torch.manual_seed(0)
    inputs = torch.randn(2, MICROBATCHES, BATCH, WIDTH, dtype=torch.float32)
    targets = torch.randn(2, MICROBATCHES, BATCH, 5, dtype=torch.float32)
    for step in range(2):
        with ctx.step():
            mine = list(ctx.microbatches(MICROBATCHES))
            for index in mine:
                last = index == mine[-1]
                with ctx.microbatch(index), nullcontext() if last else wrapped.no_sync():
                    x = inputs[step, index].to(ctx.device, ctx.dtype)
                    if fault == "cast" and ctx.world_size > 1 and x.dtype == torch.float32:
                        x = x.bfloat16().float()  # fault: cast
                    y = targets[step, index].to(ctx.device, ctx.dtype)
                    output = wrapped(x)
                    loss = F.mse_loss(output, y)
                    if not (fault == "term" and ctx.world_size > 1):  # fault: term
                        loss = loss + 1e-4 * output.abs().mean()
                    loss = loss / len(mine)  # of this rank: the wrapper averages over dp
                    ctx.loss(loss)
                    loss.backward()
            optimizer.step()
            optimizer.zero_grad()
