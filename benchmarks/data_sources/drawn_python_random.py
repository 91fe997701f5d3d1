"""Data-parallel regression; samples are lists of numbers from Python's `random`, then shuffled.

A script without NumPy: `random.gauss` for the values, `random.shuffle` for the order of an epoch.
"""

from __future__ import annotations

import random

import torch
import torch.nn.functional as F
from drawn_layers import sum_gradients
from torch import nn

from pytest_trainsafe import Context

SAMPLES, BATCH, WIDTH = 16, 4, 6
MICROBATCHES = SAMPLES // BATCH


def train(ctx: Context, fault: str = "") -> None:
    random.seed(20)
    samples = [[random.gauss(0, 1) for _ in range(WIDTH)] for _ in range(SAMPLES)]
    targets = [[sum(sample) / WIDTH + random.uniform(-0.5, 0.5)] for sample in samples]
    numbers = list(range(SAMPLES))

    model = nn.Sequential(nn.Linear(WIDTH, 16), nn.ELU(), nn.Linear(16, 1))
    model.to(ctx.device, ctx.dtype)
    ctx.initialize(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ctx.watch(model, optimizer)
    for _ in range(2):
        random.shuffle(numbers)
        with ctx.step():
            for index in ctx.microbatches(MICROBATCHES):
                with ctx.microbatch(index):
                    chosen = numbers[index * BATCH : (index + 1) * BATCH]
                    x = torch.tensor([samples[number] for number in chosen])
                    y = torch.tensor([targets[number] for number in chosen])
                    x, y = x.to(ctx.device, ctx.dtype), y.to(ctx.device, ctx.dtype)
                    if fault == "cast" and ctx.world_size > 1 and x.dtype == torch.float32:
                        x = x.bfloat16().float()  # fault: cast
                    output = model(x)
                    if not (fault == "term" and ctx.world_size > 1):  # fault: term
                        output = output + 1e-4 * x[:, :1]
                    loss = F.mse_loss(output, y) / MICROBATCHES
                    ctx.loss(loss)
                    loss.backward()
            sum_gradients(model, ctx.group("dp"))
            optimizer.step()
            optimizer.zero_grad()
