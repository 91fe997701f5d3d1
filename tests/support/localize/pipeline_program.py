"""Four layers over two pipeline stages, in which one of several faults can be planted.

A stage is watched as one module, or, with `parts`, as a dict of separate layers by their names.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

HIDDEN, LAYERS = 8, 4

#: The fault to find for each planted bug: phase, target, and the pp rank that receives the tensor.
FAULTS = {
    "forward": ("forward", "layers.2", None),
    "between": ("forward", "", None),
    "handed on": ("forward", "<program>", 1),
    "handed back": ("backward", "<program>", 0),
    "differentiated": ("backward", "<program>", None),
    "data": ("data", "<program>", None),
}

#: The same for separate layers: no module is around them, so code between them is the program's.
PARTS_FAULTS = {**FAULTS, "between": ("forward", "<program>", None)}


class Layer(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.linear = nn.Linear(HIDDEN, HIDDEN)
        self.bug = bug

    def forward(self, hidden: Tensor) -> Tensor:
        return self.linear(hidden).tanh() * (1.01 if self.bug == "forward" else 1.0)


class Stage(nn.Module):
    """Some layers, under their numbers in the whole model."""

    def __init__(self, numbers: range, bug: str) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({str(n): Layer(bug if n == 2 else "") for n in numbers})
        self.bug = bug

    def forward(self, hidden: Tensor) -> Tensor:
        for number, layer in self.layers.items():
            if self.bug == "between" and number == "3":
                hidden = hidden.roll(1, dims=-1)
            hidden = layer(hidden)
        return hidden


def train(ctx: Any, bug: str = "", parts: bool = False) -> None:
    pp = ctx.point.size("pp")
    bug = bug if pp > 1 else ""
    here, group = ctx.coordinates["pp"], ctx.group("pp")
    share = LAYERS // pp
    stage = Stage(range(here * share, (here + 1) * share), bug).to(ctx.device, ctx.dtype)
    ctx.initialize(stage)
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.1)
    ctx.watch(
        {f"layers.{n}": layer for n, layer in stage.layers.items()} if parts else stage, optimizer
    )
    first, last = here == 0, here == pp - 1
    with ctx.step():
        for index in ctx.microbatches(2):
            data = torch.Generator().manual_seed(index)
            batch = torch.randn(4, HIDDEN, generator=data, dtype=torch.float64).to(ctx.dtype)
            with ctx.microbatch(index):
                if not first:
                    dist.recv(batch, dist.get_global_rank(group, here - 1), group=group)
                    batch.requires_grad_()
                elif bug == "data":
                    batch = batch.roll(1, 0)
                left = stage(batch)
                if last:
                    loss = left.square().mean()
                    ctx.loss(loss)
                    (loss * 2 if bug == "differentiated" else loss).backward()
                else:
                    handed = left.detach() * (1.01 if bug == "handed on" else 1.0)
                    dist.send(handed, dist.get_global_rank(group, here + 1), group=group)
                    gradient = torch.empty_like(left)
                    dist.recv(gradient, dist.get_global_rank(group, here + 1), group=group)
                    left.backward(gradient)
                if not first:
                    assert batch.grad is not None
                    scale = 2.0 if bug == "handed back" else 1.0
                    dist.send(
                        batch.grad * scale, dist.get_global_rank(group, here - 1), group=group
                    )
        optimizer.step()
