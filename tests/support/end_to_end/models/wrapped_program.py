"""A small network under torch's data parallel wrappers, trained with gradient clipping."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

MICROBATCHES, BATCH, WIDTH = 4, 3, 8


def batch(step: int, index: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 * step + index)
    return torch.randn((BATCH, WIDTH), generator=generator, dtype=torch.float64)


def sums(state, bucket):  # no type hints: DDP wants classes, not strings
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


class ByHand(nn.Module):
    """Reduces gradients in its own method `reduce`, which pytest-trainsafe does not recognize."""

    def __init__(self, inside: nn.Module, group: dist.ProcessGroup, way: str) -> None:
        super().__init__()
        self.module, self.group = inside, group
        self.divide, self.again = way == "by hand", way == "by hand, twice"

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.module(x)
        return result

    def reduce(self) -> None:
        for parameter in self.parameters():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad, group=self.group)
            if self.divide:
                parameter.grad /= self.group.size()
        for parameter in self.parameters() if self.again else ():
            dist.all_reduce(parameter.grad, group=self.group)


def wrap(ctx: Any, model: nn.Module, way: str) -> tuple[nn.Module, nn.Module]:
    """The module that is called, and the module that is watched."""
    if way.startswith("fsdp"):
        from torch.distributed.fsdp import fully_shard

        for module in (model[0], model):  # type: ignore[index]
            sharded: Any = fully_shard(module, mesh=ctx.mesh["dp"])
            if way == "fsdp sums":
                sharded.set_gradient_divide_factor(1.0)
                sharded.set_force_sum_reduction_for_comms(True)
        return model, model
    if way.startswith("by hand"):
        own = ByHand(model, ctx.group("dp"), way)
        return own, own
    wrapped = DistributedDataParallel(model, process_group=ctx.group("dp"))
    if way == "hook":
        wrapped.register_comm_hook(None, sums)
    return wrapped, wrapped.module if way == "inside" else wrapped


def train(
    ctx: Any,
    way: str = "ddp",
    share: bool = True,
    times: int = 1,
    norm: bool = True,
    annotations: Any = None,
    divided: int = 1,
    limit: float = 0.1,
) -> None:
    """With `share` the loss is a mean over this rank's micro-batches, else over those of all ranks.

    The loss is multiplied by `times`; `norm` reports the gradient norm.  Gradients are divided by
    `divided` after their reduction, and clipped to the norm `limit`.
    """
    model: nn.Module = nn.Sequential(
        nn.Linear(WIDTH, 2 * WIDTH), nn.Tanh(), nn.Linear(2 * WIDTH, WIDTH)
    ).to(ctx.dtype)
    ctx.initialize(model)
    called, watched = wrap(ctx, model, way) if ctx.point.size("dp") > 1 else (model, model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ctx.watch(watched, optimizer, annotations)
    mine = range(MICROBATCHES) if way.endswith("all batches") else ctx.microbatches(MICROBATCHES)
    for step in range(2):
        with ctx.step():
            for index in mine:
                ddp = called if isinstance(called, DistributedDataParallel) else None
                later = ddp.no_sync() if ddp is not None and index != mine[-1] else nullcontext()
                with ctx.microbatch(index), later:
                    loss = called(batch(step, index).to(ctx.dtype)).square().mean()
                    ctx.loss(loss)
                    (times * loss / (len(mine) if share else MICROBATCHES)).backward()
            if isinstance(called, ByHand):
                called.reduce()
            if divided != 1:
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    parameter.grad.div_(divided)
            total = nn.utils.clip_grad_norm_(model.parameters(), limit)
            if norm:
                ctx.grad_norm(total)
            optimizer.step()
            optimizer.zero_grad()
