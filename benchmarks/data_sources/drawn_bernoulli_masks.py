"""A tensor-parallel autoencoder; parts of its inputs are hidden by `bernoulli` masks.

The idea is that of denoising autoencoders (Vincent et al., 2008): reconstruct what was hidden.
"""

from __future__ import annotations

import torch
from drawn_layers import MLP_LAYOUTS, ParallelMLP
from torch import Tensor, nn

from pytest_trainsafe import Context

MICROBATCHES, BATCH, WIDTH = 2, 6, 12


class Autoencoder(nn.Module):
    """Normalises its input, and adds a tensor-parallel MLP's output to a small bias."""

    def __init__(self, ctx: Context, fault: str) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.mlp = ParallelMLP(WIDTH, 16, WIDTH, ctx.group("tp"))
        self.shift = nn.Parameter(torch.zeros(WIDTH))
        self.fault = fault if ctx.world_size > 1 else ""

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        if self.fault == "cast" and x.dtype == torch.float32:
            x = x.bfloat16().float()  # fault: cast
        return self.mlp(x) + self.shift


def train(ctx: Context, fault: str = "") -> None:
    model = Autoencoder(ctx, fault).to(ctx.device, ctx.dtype)
    ctx.initialize(model, annotations=MLP_LAYOUTS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    ctx.watch(model, optimizer, annotations=MLP_LAYOUTS)
    generator = torch.Generator().manual_seed(8)
    samples = torch.randn(MICROBATCHES, BATCH, WIDTH, generator=generator, dtype=torch.float32)
    samples = samples.to(ctx.device, ctx.dtype)
    for _ in range(2):
        with ctx.step():
            for index in ctx.microbatches(MICROBATCHES):
                with ctx.microbatch(index):
                    kept = torch.bernoulli(torch.full((BATCH, WIDTH), 0.7), generator=generator)
                    kept = kept.to(ctx.device, ctx.dtype)
                    hidden = torch.zeros_like(kept).bernoulli_(0.5, generator=generator)
                    sample = samples[index]
                    errors = (model(sample * kept) - sample).square()
                    loss = (errors * (1 + hidden)).mean()
                    if not (fault == "term" and ctx.world_size > 1):  # fault: term
                        loss = loss + 1e-4 * (errors * kept).mean()
                    loss = loss / MICROBATCHES
                    ctx.loss(loss)
                    loss.backward()
            optimizer.step()
            optimizer.zero_grad()
