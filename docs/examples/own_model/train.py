"""The training program: what is about testing are the lines with `ctx`."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pytest_trainsafe import Context, divides, requires

from .model import Model

LAYOUTS = Path(__file__).with_name("layouts.yaml")
VOCABULARY, LENGTH, BATCH = 32, 8, 2


def batch(step: int, index: int) -> tuple[Tensor, Tensor]:
    """The inputs and targets of a micro-batch, by its number in the whole step."""
    generator = torch.Generator().manual_seed(1000 * step + index)
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


@requires(divides("hidden", "tp"), divides("microbatches", "dp"))
def train(
    ctx: Context, hidden: int = 16, layers: int = 2, microbatches: int = 4, steps: int = 2
) -> None:
    model = Model(VOCABULARY, hidden, layers, ctx.group("tp")).to(ctx.device, ctx.dtype)
    ctx.initialize(model, annotations=LAYOUTS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ctx.watch(model, optimizer, annotations=LAYOUTS)
    for step in range(steps):
        with ctx.step():
            for index in ctx.microbatches(microbatches):
                with ctx.microbatch(index):
                    inputs, targets = (tensor.to(ctx.device) for tensor in batch(step, index))
                    logits = model(inputs)
                    loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
                    loss = loss / microbatches  # of the whole step, not of this rank alone
                    ctx.loss(loss)
                    loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, group=ctx.group("dp"))
            optimizer.step()
            optimizer.zero_grad()
