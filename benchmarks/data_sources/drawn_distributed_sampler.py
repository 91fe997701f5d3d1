"""DistributedDataParallel with a DistributedSampler, which shuffles and divides single samples.

The loop is that of PyTorch's examples for ImageNet: `set_epoch`, then one backward for each batch.
Only whole steps are the same at every number of ranks: a step has the same samples, but a rank's
batch has every second one of them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from pytest_trainsafe import Context

SAMPLES, BATCH, WIDTH, CLASSES = 16, 8, 8, 3


def train(ctx: Context, fault: str = "") -> None:
    generator = torch.Generator().manual_seed(12)
    data = torch.randn(SAMPLES, WIDTH, generator=generator)
    dataset = TensorDataset(data, torch.randint(CLASSES, (SAMPLES,), generator=generator))
    ranks = ctx.point.size("dp")
    sampler = DistributedSampler(dataset, ranks, ctx.coordinates["dp"], shuffle=True, seed=5)
    loader = DataLoader(dataset, BATCH // ranks, sampler=sampler)

    model = nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    model.to(ctx.device, ctx.dtype)
    ctx.initialize(model)
    wrapped = DistributedDataParallel(model, process_group=ctx.group("dp"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    ctx.watch(wrapped, optimizer, level="step")
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, labels in loader:
            with ctx.step():
                x, labels = x.to(ctx.device, ctx.dtype), labels.to(ctx.device)
                if fault == "cast" and ctx.world_size > 1 and x.dtype == torch.float32:
                    x = x.bfloat16().float()  # fault: cast
                logits = wrapped(x)
                loss = F.cross_entropy(logits, labels)
                if not (fault == "term" and ctx.world_size > 1):  # fault: term
                    loss = loss + 1e-4 * logits.square().mean()
                ctx.loss(loss)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
