"""An MLP that DTensor cuts over tp; its forward adds noise to the input from a seeded generator.

Training with noise on the inputs is an old regulariser (Bishop, 1995). Both tp ranks have the same
input, and their generators have the same seed, so they add the same noise.
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

MICROBATCHES, BATCH, WIDTH = 2, 4, 8
LAYOUTS = {"modules": MLP_MODULES}


class NoisyMLP(nn.Module):
    """Adds noise to its input, then two linear layers."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(100)
        self.up = nn.Linear(WIDTH, 16)
        self.activation = nn.Tanh()
        self.down = nn.Linear(16, WIDTH)
        self.fault = fault

    def forward(self, x: Tensor) -> Tensor:
        noise = torch.randn(x.shape, generator=self.generator, dtype=x.dtype).to(x.device)
        clean, x = x, x + 0.1 * noise
        if self.fault == "cast" and x.dtype == torch.float32:
            x = x.bfloat16().float()  # fault: cast
        x = self.down(self.activation(self.up(x)))
        if self.fault != "term":  # fault: term
            x = x + 1e-4 * clean
        return x


def train(ctx: Context, fault: str = "") -> None:
    model = NoisyMLP(fault if ctx.world_size > 1 else "").to(ctx.device, ctx.dtype)
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    parallelize_module(model, ctx.mesh["tp"], plan)
    ctx.initialize(model, annotations=LAYOUTS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    ctx.watch(model, optimizer, annotations=LAYOUTS)
    generator = torch.Generator().manual_seed(9)
    samples = torch.randn(2, MICROBATCHES, BATCH, WIDTH, generator=generator)
    for step in range(2):
        with ctx.step():
            for index in ctx.microbatches(MICROBATCHES):
                with ctx.microbatch(index):
                    x = samples[step, index].to(ctx.device, ctx.dtype)
                    loss = F.mse_loss(model(x), x.roll(1, dims=1)) / MICROBATCHES
                    ctx.loss(loss)
                    loss.backward()
            optimizer.step()
            optimizer.zero_grad()
