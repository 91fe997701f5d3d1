"""A tensor-parallel classifier; one generator is made before the loop and drawn in it.

Streams of synthetic samples are made in this way in many benchmarks of training speed, which need
no data set. The numbers are drawn in the dtype of the training.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from drawn_layers import MLP_MODULES, MLP_PARAMETERS, ParallelMLP
from torch import Tensor, nn

from pytest_trainsafe import Context

MICROBATCHES, BATCH, WIDTH, CLASSES = 2, 6, 12, 5
LAYOUTS = {"parameters": MLP_PARAMETERS, "modules": MLP_MODULES}


class Classifier(nn.Module):
    """A tensor-parallel MLP with a residual connection, and a head."""

    def __init__(self, ctx: Context, fault: str) -> None:
        super().__init__()
        self.mlp = ParallelMLP(WIDTH, 24, WIDTH, ctx.group("tp"))
        self.head = nn.Linear(WIDTH, CLASSES)
        self.fault = fault if ctx.world_size > 1 else ""

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mlp(x)
        if self.fault == "cast" and x.dtype == torch.float32:
            x = x.bfloat16().float()  # fault: cast
        return self.head(x)


def train(ctx: Context, fault: str = "") -> None:
    model = Classifier(ctx, fault).to(ctx.device, ctx.dtype)
    ctx.initialize(model, annotations=LAYOUTS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ctx.watch(model, optimizer, annotations=LAYOUTS)
    generator = torch.Generator().manual_seed(7)
    for _ in range(2):
        with ctx.step():
            for index in ctx.microbatches(MICROBATCHES):
                with ctx.microbatch(index):
                    x = torch.randn(BATCH, WIDTH, generator=generator, dtype=ctx.dtype)
                    labels = torch.randint(CLASSES, (BATCH,), generator=generator)
                    logits = model(x.to(ctx.device))
                    loss = F.cross_entropy(logits, labels.to(ctx.device))
                    if not (fault == "term" and ctx.world_size > 1):  # fault: term
                        loss = loss + 1e-4 * logits.logsumexp(-1).square().mean()
                    loss = loss / MICROBATCHES
                    ctx.loss(loss)
                    loss.backward()
            optimizer.step()
            optimizer.zero_grad()
