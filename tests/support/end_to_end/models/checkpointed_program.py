"""Blocks under an activation checkpoint wrapper and `fully_shard`, as torchtitan applies them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    checkpoint_wrapper,
)

MICROBATCHES, BATCH, WIDTH = 2, 3, 4
ANNOTATIONS = {"modules": {"up": {"output": {"tp_dim": -1}}}}


def batch(step: int, index: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 * step + index)
    return torch.randn((BATCH, WIDTH), generator=generator, dtype=torch.float64)


class Detached(nn.Linear):
    """Its weight and bias get no gradients."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight.detach(), self.bias.detach())


class Block(nn.Module):
    def __init__(self, detached: bool) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = (Detached if detached else nn.Linear)(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        added: Tensor = self.down(torch.tanh(self.up(x)))
        return x + added


def over_tp(model: nn.Module, mesh: Any) -> None:
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    parallelize_module(model, mesh, {f"{n}.{name}": p for n in "12" for name, p in plan.items()})


def shard(model: Any, mesh: Any, order: str, impl: str, reshard: bool) -> None:
    """Applies the wrapper and `fully_shard` to each block; `order` names the outer one."""
    from torch.distributed.fsdp import fully_shard

    for number in (1, 2):
        if order == "sharded outside":
            model[number] = checkpoint_wrapper(model[number], CheckpointImpl[impl])
        fully_shard(model[number], mesh=mesh, reshard_after_forward=reshard)
        if order == "wrapper outside":
            model[number] = checkpoint_wrapper(model[number], CheckpointImpl[impl])
    fully_shard(model, mesh=mesh)


def train(
    ctx: Any,
    order: str = "sharded outside",
    impl: str = "NO_REENTRANT",
    reshard: bool = True,
    detached: bool = False,
) -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Block(False), Block(detached)).to(ctx.dtype)
    ctx.group("dp"), ctx.group("tp")
    if ctx.point.size("tp") > 1:
        over_tp(model, ctx.mesh["tp"])
    if ctx.point.size("dp") > 1:
        shard(model, ctx.mesh["dp"], order, impl, reshard)
    ctx.initialize(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ctx.watch(model, optimizer, annotations=ANNOTATIONS)
    mine = ctx.microbatches(MICROBATCHES)
    with ctx.step():
        for index in mine:
            with ctx.microbatch(index):
                loss = model(batch(0, index).to(ctx.dtype)).square().mean()
                ctx.loss(loss)
                (loss / len(mine)).backward()
        optimizer.step()
        optimizer.zero_grad()
