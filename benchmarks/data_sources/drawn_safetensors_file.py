"""An MLP that DTensor cuts over tp; its samples are in a file of safetensors.

`parallelize_module` as in PyTorch's tutorial on tensor parallelism. Each rank writes a file of its
own, and reads one micro-batch at a time from it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from drawn_layers import MLP_MODULES
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from pytest_trainsafe import Context

MICROBATCHES, BATCH, WIDTH = 2, 4, 8
LAYOUTS = {"modules": MLP_MODULES}


class MLP(nn.Module):
    """Two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 16)
        self.activation = nn.GELU()
        self.down = nn.Linear(16, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.up(x)))


def write(path: Path) -> None:
    """Draw all samples and write them, each micro-batch under a name of its own."""
    generator = torch.Generator().manual_seed(40)
    tensors = {}
    for step in range(2):
        for index in range(MICROBATCHES):
            tensors[f"{step}.{index}.x"] = torch.randn(BATCH, WIDTH, generator=generator)
            tensors[f"{step}.{index}.y"] = torch.rand(BATCH, WIDTH, generator=generator)
    save_file(tensors, path)


def train(ctx: Context, fault: str = "") -> None:
    model = MLP().to(ctx.device, ctx.dtype)
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    parallelize_module(model, ctx.mesh["tp"], plan)
    ctx.initialize(model, annotations=LAYOUTS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ctx.watch(model, optimizer, annotations=LAYOUTS)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "samples.safetensors")
        write(path)
        with safe_open(path, framework="pt") as samples:
            for step in range(2):
                with ctx.step():
                    for index in ctx.microbatches(MICROBATCHES):
                        with ctx.microbatch(index):
                            x = samples.get_tensor(f"{step}.{index}.x").to(ctx.device, ctx.dtype)
                            y = samples.get_tensor(f"{step}.{index}.y").to(ctx.device, ctx.dtype)
                            if fault == "cast" and ctx.world_size > 1 and x.dtype == torch.float32:
                                x = x.bfloat16().float()  # fault: cast
                            output = model(x)
                            if not (fault == "term" and ctx.world_size > 1):  # fault: term
                                output = output + 1e-4 * x
                            loss = F.mse_loss(output, y) / MICROBATCHES
                            ctx.loss(loss)
                            loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
