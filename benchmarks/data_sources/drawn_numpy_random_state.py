"""DistributedDataParallel; the data set is drawn by NumPy's RandomState before the first step.

The data are like those of scikit-learn's `make_regression`: a linear model with Gaussian noise.
"""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pytest_trainsafe import Context

MICROBATCHES, BATCH, WIDTH = 4, 4, 8


def train(ctx: Context, fault: str = "") -> None:
    state = np.random.RandomState(0)
    shape = (2, MICROBATCHES, BATCH, WIDTH)
    inputs = state.randn(*shape).astype(np.float32)
    coefficients = state.uniform(-1, 1, size=(WIDTH, 1)).astype(np.float32)
    targets = inputs @ coefficients + state.normal(scale=0.1, size=(*shape[:-1], 1))

    model = nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, 1))
    model.to(ctx.device, ctx.dtype)
    ctx.initialize(model)
    wrapped = DistributedDataParallel(model, process_group=ctx.group("dp"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    ctx.watch(wrapped, optimizer)
    for step in range(2):
        with ctx.step():
            mine = list(ctx.microbatches(MICROBATCHES))
            for index in mine:
                last = index == mine[-1]
                with ctx.microbatch(index), nullcontext() if last else wrapped.no_sync():
                    x = torch.as_tensor(inputs[step, index], dtype=ctx.dtype, device=ctx.device)
                    y = torch.as_tensor(targets[step, index], dtype=ctx.dtype, device=ctx.device)
                    x = wrapped(x)
                    if fault == "cast" and ctx.world_size > 1 and x.dtype == torch.float32:
                        x = x.bfloat16().float()  # fault: cast
                    loss = F.mse_loss(x, y)
                    if not (fault == "term" and ctx.world_size > 1):  # fault: term
                        loss = loss + 1e-4 * F.l1_loss(x, y)
                    ctx.loss(loss / MICROBATCHES)  # of the whole step
                    (loss / len(mine)).backward()  # of this rank: the wrapper averages over dp
            optimizer.step()
            optimizer.zero_grad()
