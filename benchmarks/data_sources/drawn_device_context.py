"""DistributedDataParallel; model and samples are made inside `with torch.device("cpu")`.

The context of PyTorch's documentation that says on which device new tensors are made. Each rank
draws all samples of a step from the default generator and trains on its own.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pytest_trainsafe import Context

MICROBATCHES, BATCH, WIDTH = 4, 3, 8
ANNOTATIONS = {"loss": {"mean": ["dp"]}}


def train(ctx: Context, fault: str = "") -> None:
    with torch.device("cpu"):
        model = nn.Sequential(
            nn.Linear(WIDTH, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, WIDTH)
        )
    model.to(ctx.device, ctx.dtype)
    ctx.initialize(model)
    wrapped = DistributedDataParallel(model, process_group=ctx.group("dp"))
    optimizer = torch.optim.NAdam(model.parameters(), lr=5e-3)
    ctx.watch(wrapped, optimizer, annotations=ANNOTATIONS)
    torch.manual_seed(2)
    for _ in range(2):
        with torch.device("cpu"):
            inputs = torch.randn(MICROBATCHES, BATCH, WIDTH).to(ctx.dtype)
            targets = torch.rand(MICROBATCHES, BATCH, WIDTH).to(ctx.dtype)
        with ctx.step():
            mine = list(ctx.microbatches(MICROBATCHES))
            for index in mine:
                last = index == mine[-1]
                with ctx.microbatch(index), nullcontext() if last else wrapped.no_sync():
                    x, y = inputs[index].to(ctx.device), targets[index].to(ctx.device)
                    if fault == "cast" and ctx.world_size > 1 and x.dtype == torch.float32:
                        x = x.bfloat16().float()  # fault: cast
                    output = wrapped(x)
                    loss = F.mse_loss(output, y)
                    if not (fault == "term" and ctx.world_size > 1):  # fault: term
                        loss = loss + 1e-4 * output.square().mean()
                    loss = loss / len(mine)  # of this rank: the wrapper averages over dp
                    ctx.loss(loss)
                    loss.backward()
            optimizer.step()
            optimizer.zero_grad()
