"""A small data-parallel CNN; images are drawn by `uniform_` in place, noise by `torch.rand`.

Random images in place of a data set are usual in benchmarks of convolutional networks. All are
drawn in the dtype of the training.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from drawn_layers import sum_gradients
from torch import Tensor, nn

from pytest_trainsafe import Context

MICROBATCHES, BATCH, SIZE, CLASSES = 4, 2, 6, 4


class Network(nn.Module):
    """Two convolutions and a classifier."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, padding=1)
        self.second = nn.Conv2d(4, 8, 3, padding=1)
        self.classifier = nn.Linear(8, CLASSES)
        self.fault = fault

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.first(x))
        if self.fault == "cast" and x.dtype == torch.float32:
            x = x.bfloat16().float()  # fault: cast
        x = F.gelu(self.second(F.avg_pool2d(x, 2)))
        return self.classifier(x.mean((2, 3)))


def batch(ctx: Context, step: int, index: int, fault: str) -> tuple[Tensor, Tensor]:
    """Noisy images and their classes, by the number of the micro-batch."""
    generator = torch.Generator().manual_seed(100 * step + index + 1)
    images = torch.empty(BATCH, 1, SIZE, SIZE, dtype=ctx.dtype)
    images.uniform_(-1, 1, generator=generator)
    noise = torch.rand(images.shape, generator=generator, dtype=ctx.dtype)
    if not (fault == "term" and ctx.world_size > 1):  # fault: term
        images += 1e-4 * noise
    classes = torch.randint(0, CLASSES, (BATCH,), generator=generator)
    return images.to(ctx.device), classes.to(ctx.device)


def train(ctx: Context, fault: str = "") -> None:
    model = Network(fault if ctx.world_size > 1 else "").to(ctx.device, ctx.dtype)
    ctx.initialize(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    ctx.watch(model, optimizer)
    for step in range(2):
        with ctx.step():
            for index in ctx.microbatches(MICROBATCHES):
                with ctx.microbatch(index):
                    images, classes = batch(ctx, step, index, fault)
                    loss = F.cross_entropy(model(images), classes) / MICROBATCHES
                    ctx.loss(loss)
                    loss.backward()
            sum_gradients(model, ctx.group("dp"))
            optimizer.step()
            optimizer.zero_grad()
