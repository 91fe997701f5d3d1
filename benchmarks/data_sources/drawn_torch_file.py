"""A data-parallel CNN; the first rank writes the data set by `torch.save`, and all ranks load it.

The usual preparation of a data set: one process prepares a file, a barrier, then everybody reads.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from drawn_layers import sum_gradients
from torch import Tensor, nn

from pytest_trainsafe import Context

MICROBATCHES, BATCH, SIZE, CLASSES = 4, 2, 6, 3


class Network(nn.Module):
    """A convolution, a norm over channels and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(2, 4, 3)
        self.norm = nn.GroupNorm(2, 4)
        self.classifier = nn.Linear(4 * (SIZE - 2) ** 2, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(F.silu(self.norm(self.convolution(images))).flatten(1))


def write(path: Path) -> None:
    """Draw the data set and write it."""
    torch.manual_seed(77)
    images = torch.randn(2, MICROBATCHES, BATCH, 2, SIZE, SIZE)
    classes = torch.randint(0, CLASSES, (2, MICROBATCHES, BATCH))
    torch.save({"images": images, "classes": classes}, path)


def read(ctx: Context) -> dict[str, Tensor]:
    """The data set, which the first rank has written into a folder that is deleted again."""
    group = ctx.group("dp")
    with tempfile.TemporaryDirectory() as folder:
        if ctx.rank == 0:
            write(Path(folder, "data.pt"))
        where = [folder]
        dist.broadcast_object_list(where, src=0, group=group)
        data = torch.load(Path(where[0], "data.pt"))
        dist.barrier(group=group)  # all have read it
    return data


def train(ctx: Context, fault: str = "") -> None:
    data = read(ctx)
    model = Network().to(ctx.device, ctx.dtype)
    ctx.initialize(model)
    optimizer = torch.optim.NAdam(model.parameters(), lr=2e-3)
    ctx.watch(model, optimizer)
    for step in range(2):
        with ctx.step():
            for index in ctx.microbatches(MICROBATCHES):
                with ctx.microbatch(index):
                    x = data["images"][step, index].to(ctx.device, ctx.dtype)
                    classes = data["classes"][step, index].to(ctx.device)
                    if fault == "cast" and ctx.world_size > 1 and x.dtype == torch.float32:
                        x = x.bfloat16().float()  # fault: cast
                    if not (fault == "term" and ctx.world_size > 1):  # fault: term
                        x = x + 1e-4
                    loss = F.cross_entropy(model(x), classes) / MICROBATCHES
                    ctx.loss(loss)
                    loss.backward()
            sum_gradients(model, ctx.group("dp"))
            optimizer.step()
            optimizer.zero_grad()
