"""A tensor-parallel MLP; samples are drawn in the loop from NumPy's global generator.

`np.random.seed` at the top and `np.random` functions below it, as older scripts do.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from drawn_layers import MLP_LAYOUTS, ParallelMLP

from pytest_trainsafe import Context

MICROBATCHES, BATCH, WIDTH, CLASSES = 2, 6, 8, 4


def train(ctx: Context, fault: str = "") -> None:
    np.random.seed(1337)
    model = ParallelMLP(WIDTH, 16, CLASSES, ctx.group("tp")).to(ctx.device, ctx.dtype)
    ctx.initialize(model, annotations=MLP_LAYOUTS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ctx.watch(model, optimizer, annotations=MLP_LAYOUTS)
    for _ in range(2):
        with ctx.step():
            for index in ctx.microbatches(MICROBATCHES):
                with ctx.microbatch(index):
                    x = torch.tensor(np.random.uniform(-2, 2, (BATCH, WIDTH)), dtype=ctx.dtype)
                    labels = torch.tensor(np.random.randint(0, CLASSES, BATCH))
                    x, labels = x.to(ctx.device), labels.to(ctx.device)
                    logits = model(x)
                    if fault == "cast" and ctx.world_size > 1 and logits.dtype == torch.float32:
                        logits = logits.bfloat16().float()  # fault: cast
                    if not (fault == "term" and ctx.world_size > 1):  # fault: term
                        logits = logits + 1e-4 * x[:, :CLASSES]
                    loss = F.cross_entropy(logits, labels) / MICROBATCHES
                    ctx.loss(loss)
                    loss.backward()
            optimizer.step()
            optimizer.zero_grad()
