"""A residual network with batch normalisation under DistributedDataParallel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

MICROBATCHES, BATCH, CLASSES = 4, 4, 5


def images(step: int, index: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + index)
    pixels = torch.randn((BATCH, 3, 16, 16), generator=generator, dtype=torch.float64)
    return pixels, torch.randint(CLASSES, (BATCH,), generator=generator)


def build() -> nn.Module:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic",
        num_labels=CLASSES,
    )  # fmt: skip
    return ResNetForImageClassification(config)


def train(ctx: Any, steps: int = 2, fault: str = "") -> None:
    network = build().to(ctx.device, ctx.dtype)
    ctx.initialize(network)
    wrapped: nn.Module = network
    if ctx.point.size("dp") > 1:
        wrapped = DistributedDataParallel(network, process_group=ctx.group("dp"))
    if fault == "evaluation" and ctx.coordinates["dp"]:
        network.resnet.encoder.stages[1].eval()  # type: ignore[union-attr, index]
    rate = 0.05 * (ctx.point.size("dp") if fault == "rate" else 1)
    optimizer = torch.optim.SGD(network.parameters(), lr=rate, momentum=0.9)
    ctx.watch(network, optimizer)
    mine = ctx.microbatches(MICROBATCHES)
    for step in range(steps):
        with ctx.step():
            for index in mine:
                with ctx.microbatch(index):
                    pixels, labels = images(step, index)
                    logits = wrapped(pixel_values=pixels.to(ctx.dtype)).logits
                    loss = cross_entropy(logits, labels)
                    ctx.loss(loss)
                    divisor = MICROBATCHES if fault == "divided twice" else len(mine)
                    (loss / divisor).backward()
            optimizer.step()
            optimizer.zero_grad()
