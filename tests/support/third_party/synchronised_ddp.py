"""A network whose batch normalisation computes its statistics over all dp ranks by all-reduces.

torch's own SyncBatchNorm needs a GPU.  Every micro-batch is sharded over dp: all ranks work on the
same micro-batch, each on its own samples.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.nn.functional import all_reduce
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from tests.support.third_party.resnet_ddp import BATCH, MICROBATCHES, images


class Synchronised(nn.BatchNorm2d):
    """Batch normalisation by the means and variances of all ranks' samples, if `reduces`."""

    group: dist.ProcessGroup
    reduces = True

    def forward(self, x: Tensor) -> Tensor:
        of_samples = torch.stack([x.mean((0, 2, 3)), x.square().mean((0, 2, 3))])
        if self.reduces:
            of_samples = all_reduce(of_samples, group=self.group) / self.group.size()
        mean, square = of_samples
        variance = square - mean.square()
        scale = self.weight * (variance + self.eps).rsqrt()
        return x * scale[:, None, None] + (self.bias - mean * scale)[:, None, None]


def build() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False), Synchronised(8), nn.ReLU(), nn.Flatten(), nn.LazyLinear(5)
    )


def train(ctx: Any, steps: int = 2, annotations: Any = None, fault: str = "") -> None:
    model = build()
    model[1].reduces = fault != "own statistics"  # type: ignore[index]
    group = ctx.group("dp")
    model[1].group = group  # type: ignore[index]
    model.to(ctx.device, ctx.dtype)
    model(images(0, 0)[0].to(ctx.dtype))  # which gives the lazy layer its shape
    ctx.initialize(model)
    wrapped = DistributedDataParallel(model, process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    ctx.watch(model, optimizer, annotations)
    share = BATCH // group.size()
    first = 0 if fault == "same part" else group.rank() * share
    divisor = MICROBATCHES * (group.size() if fault == "divided twice" else 1)
    for step in range(steps):
        with ctx.step():
            for index in ctx.microbatches(MICROBATCHES, order="split"):
                with ctx.microbatch(index):
                    pixels, labels = images(step, index)
                    mine = slice(first, first + share)
                    loss = cross_entropy(wrapped(pixels[mine].to(ctx.dtype)), labels[mine])
                    ctx.loss(loss)
                    (loss / divisor).backward()
            optimizer.step()
            optimizer.zero_grad()
