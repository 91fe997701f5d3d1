"""Tensor-parallel regression; two workers of a DataLoader draw the samples.

A map-style data set that makes a sample when it is asked for it, from a generator that is seeded
with the sample's number, so that it does not matter which worker makes it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from drawn_layers import MLP_LAYOUTS, ParallelMLP
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from pytest_trainsafe import Context

MICROBATCHES, BATCH, WIDTH = 3, 4, 8


class Samples(Dataset):
    """Samples that are drawn when they are read."""

    def __len__(self) -> int:
        return MICROBATCHES * BATCH

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(number)
        x = torch.randn(WIDTH, generator=generator)
        return x, x.flip(0) + 0.1 * torch.randn(WIDTH, generator=generator)


def train(ctx: Context, fault: str = "") -> None:
    order = torch.Generator().manual_seed(4)
    loader = DataLoader(Samples(), BATCH, shuffle=True, num_workers=2, generator=order)

    model = ParallelMLP(WIDTH, 16, WIDTH, ctx.group("tp")).to(ctx.device, ctx.dtype)
    ctx.initialize(model, annotations=MLP_LAYOUTS)
    optimizer = torch.optim.NAdam(model.parameters(), lr=1e-2)
    ctx.watch(model, optimizer, annotations=MLP_LAYOUTS)
    for _ in range(2):
        with ctx.step():
            for index, (x, y) in zip(ctx.microbatches(MICROBATCHES), loader, strict=True):
                with ctx.microbatch(index):
                    x, y = x.to(ctx.device, ctx.dtype), y.to(ctx.device, ctx.dtype)
                    output = model(x)
                    if fault == "cast" and ctx.world_size > 1 and output.dtype == torch.float32:
                        output = output.bfloat16().float()  # fault: cast
                    if not (fault == "term" and ctx.world_size > 1):  # fault: term
                        output = output + 1e-4 * x
                    loss = F.mse_loss(output, y) / MICROBATCHES
                    ctx.loss(loss)
                    loss.backward()
            optimizer.step()
            optimizer.zero_grad()
