"""A tensor-parallel classifier; a DataLoader shuffles the samples with a generator of its own.

PyTorch's notes on reproducibility give a DataLoader a generator in this way. An epoch is one step,
and each batch of the loader is a micro-batch.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from drawn_layers import MLP_LAYOUTS, ParallelMLP
from torch.utils.data import DataLoader, TensorDataset

from pytest_trainsafe import Context

SAMPLES, BATCH, WIDTH, CLASSES = 12, 4, 8, 4
MICROBATCHES = SAMPLES // BATCH


def train(ctx: Context, fault: str = "") -> None:
    torch.manual_seed(6)
    dataset = TensorDataset(torch.randn(SAMPLES, WIDTH), torch.randint(CLASSES, (SAMPLES,)))
    generator = torch.Generator().manual_seed(21)
    loader = DataLoader(dataset, batch_size=BATCH, shuffle=True, generator=generator)

    model = ParallelMLP(WIDTH, 16, CLASSES, ctx.group("tp")).to(ctx.device, ctx.dtype)
    ctx.initialize(model, annotations=MLP_LAYOUTS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ctx.watch(model, optimizer, annotations=MLP_LAYOUTS)
    for _ in range(2):
        with ctx.step():
            for index, (x, labels) in zip(ctx.microbatches(MICROBATCHES), loader, strict=True):
                with ctx.microbatch(index):
                    x, labels = x.to(ctx.device, ctx.dtype), labels.to(ctx.device)
                    if fault == "cast" and ctx.world_size > 1 and x.dtype == torch.float32:
                        x = x.bfloat16().float()  # fault: cast
                    logits = model(x)
                    loss = F.cross_entropy(logits, labels)
                    if not (fault == "term" and ctx.world_size > 1):  # fault: term
                        loss = loss + 1e-4 * logits.square().mean()
                    loss = loss / MICROBATCHES
                    ctx.loss(loss)
                    loss.backward()
            optimizer.step()
            optimizer.zero_grad()
