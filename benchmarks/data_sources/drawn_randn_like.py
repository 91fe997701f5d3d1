"""A tensor-parallel denoiser; its noise is drawn by `torch.randn_like` from the default generator.

The loss is that of denoising diffusion (Ho et al., 2020): predict the noise that was added.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from drawn_layers import MLP_LAYOUTS, ParallelMLP

from pytest_trainsafe import Context

MICROBATCHES, BATCH, WIDTH = 2, 6, 8


def train(ctx: Context, fault: str = "") -> None:
    model = ParallelMLP(WIDTH + 1, 16, WIDTH, ctx.group("tp")).to(ctx.device, ctx.dtype)
    ctx.initialize(model, annotations=MLP_LAYOUTS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ctx.watch(model, optimizer, annotations=MLP_LAYOUTS)
    torch.manual_seed(99)
    for _ in range(2):
        with ctx.step():
            for index in ctx.microbatches(MICROBATCHES):
                with ctx.microbatch(index):
                    clean = torch.linspace(-1, 1, BATCH * WIDTH).view(BATCH, WIDTH)
                    clean = clean.to(ctx.device, ctx.dtype)
                    noise = torch.randn_like(clean)
                    level = torch.rand(BATCH, 1).to(ctx.device, ctx.dtype)
                    x = (1 - level).sqrt() * clean + level.sqrt() * noise
                    x = torch.cat([x, level], dim=1)
                    if fault == "cast" and ctx.world_size > 1 and x.dtype == torch.float32:
                        x = x.bfloat16().float()  # fault: cast
                    prediction = model(x)
                    loss = F.mse_loss(prediction, noise)
                    if not (fault == "term" and ctx.world_size > 1):  # fault: term
                        loss = loss + 1e-4 * F.l1_loss(prediction, noise)
                    loss = loss / MICROBATCHES
                    ctx.loss(loss)
                    loss.backward()
            optimizer.step()
            optimizer.zero_grad()
