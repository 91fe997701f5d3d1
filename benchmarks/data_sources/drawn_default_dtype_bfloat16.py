"""An MLP that DTensor cuts over tp; it is constructed while the default dtype is bfloat16.

Scripts for large models set the default dtype around the construction to save memory. The model
keeps the initial values that torch draws for it in bfloat16.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from drawn_layers import MLP_MODULES
from torch import Tensor, nn
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from pytest_trainsafe import Context

MICROBATCHES, BATCH, WIDTH, CLASSES = 2, 6, 8, 4
LAYOUTS = {"modules": MLP_MODULES}


class MLP(nn.Module):
    """Two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 16)
        self.activation = nn.SiLU()
        self.down = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.up(x)))


def construct() -> MLP:
    """A model in bfloat16, with the same values on every rank."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        torch.manual_seed(0)
        return MLP()
    finally:
        torch.set_default_dtype(before)


def train(ctx: Context, fault: str = "") -> None:
    model = construct().to(ctx.device, ctx.dtype)
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    parallelize_module(model, ctx.mesh["tp"], plan)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ctx.watch(model, optimizer, annotations=LAYOUTS)
    generator = torch.Generator().manual_seed(55)
    for _ in range(2):
        with ctx.step():
            for index in ctx.microbatches(MICROBATCHES):
                with ctx.microbatch(index):
                    x = torch.randn(BATCH, WIDTH, generator=generator).to(ctx.device, ctx.dtype)
                    labels = torch.randint(CLASSES, (BATCH,), generator=generator)
                    logits = model(x)
                    if fault == "cast" and ctx.world_size > 1 and logits.dtype == torch.float32:
                        logits = logits.bfloat16().float()  # fault: cast
                    loss = F.cross_entropy(logits, labels.to(ctx.device))
                    if not (fault == "term" and ctx.world_size > 1):  # fault: term
                        loss = loss + 1e-4 * logits.logsumexp(-1).square().mean()
                    loss = loss / MICROBATCHES
                    ctx.loss(loss)
                    loss.backward()
            optimizer.step()
            optimizer.zero_grad()
