"""A small residual network fine-tuned with DistributedDataParallel and gradient accumulation.

The idea is that of the usual image-classification recipes: a classifier gets a new head for its new
classes, is wrapped in DistributedDataParallel, and reduces gradients in the last backward of a step
only (`no_sync` before that).
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from pytest_trainsafe import Context, divides, requires

CHANNELS, SIZE, BATCH, CLASSES = 8, 6, 3, 5


class ResidualBlock(nn.Module):
    """Two convolutions with their norms before them, added to the input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(2, channels)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(2, channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        return x + self.conv2(F.silu(self.norm2(h)))


class ResidualNet(nn.Module):
    """Images to the scores of classes."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.layer1 = ResidualBlock(channels)
        self.layer2 = ResidualBlock(channels)
        self.norm = nn.GroupNorm(2, channels)
        self.head = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.layer2(self.layer1(self.stem(images)))
        return self.head(F.silu(self.norm(x)).mean(dim=(2, 3)))


def batch(ctx: Context, step: int, index: int) -> tuple[Tensor, Tensor]:
    """The images and labels of a micro-batch, by its number in the whole step."""
    generator = torch.Generator().manual_seed(1000 * step + index)
    images = torch.randn(BATCH, 3, SIZE, SIZE, generator=generator)
    labels = torch.randint(CLASSES, (BATCH,), generator=generator)
    return images.to(ctx.device, ctx.dtype), labels.to(ctx.device)


@requires(divides("microbatches", "dp"))
def train(ctx: Context, fault: str = "", microbatches: int = 4, steps: int = 2) -> None:
    """Train with SGD, momentum and clipping; DistributedDataParallel averages gradients."""
    # The pretrained network knows twice as many classes, so its head is replaced.
    net = ResidualNet(CHANNELS, 2 * CLASSES)
    late_head = fault == "head-after-wrap" and ctx.world_size > 1
    if not late_head:
        net.head = nn.Linear(CHANNELS, CLASSES)
    net.to(ctx.device, ctx.dtype)
    model = DistributedDataParallel(net, process_group=ctx.group("dp"), find_unused_parameters=True)
    if late_head:
        net.head = nn.Linear(CHANNELS, CLASSES).to(ctx.device, ctx.dtype)  # fault: head-after-wrap
    ctx.initialize(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    ctx.watch(model, optimizer, annotations={"loss": {"mean": ["dp"]}})
    for step in range(steps):
        with ctx.step():
            numbers = ctx.microbatches(microbatches)
            last = len(numbers) - 1
            if fault == "never-syncs" and ctx.world_size > 1:
                last = len(numbers)  # fault: never-syncs
            for position, number in enumerate(numbers):
                with ctx.microbatch(number):
                    if fault == "zero-in-loop" and ctx.world_size > 1:
                        optimizer.zero_grad()  # fault: zero-in-loop
                    images, labels = batch(ctx, step, number)
                    with nullcontext() if position == last else model.no_sync():
                        scores = model(images)
                        wide = torch.promote_types(scores.dtype, torch.float32)
                        loss = F.cross_entropy(scores.to(wide), labels) / len(numbers)
                        ctx.loss(loss)
                        loss.backward()
            norm = nn.utils.clip_grad_norm_(net.parameters(), 0.25)
            ctx.grad_norm(norm)
            optimizer.step()
            optimizer.zero_grad()
