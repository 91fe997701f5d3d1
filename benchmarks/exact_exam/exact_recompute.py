"""Activations that are computed again in the backward, under tensor parallelism.

Bugs, by the argument `bug`:

- "state_moved": the block reads its position offset from an attribute, which the next micro-batch
  has changed by the time of the backward (recomputation of another function; the state that
  NVIDIA-NeMo/Speech issue 14861 loses).
- "other_group": the recomputed all-gather of saved shards uses another group than the forward's
  split (recomputation; NVIDIA/Megatron-LM issue 7452, full recomputation mixes replicas).
- "other_gelu": a fused function's backward differentiates the approximation by tanh, and its
  forward is exact (recomputation of another function).
- "shard_order": the saved shards are joined in the wrong order (partitioning).
- "twice_summed": the recomputed forward's sum over tp is applied to gradients as well (doubled
  communication).
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pytest_trainsafe import divides, requires

WIDTH, LENGTH, CLASSES = 4, 4, 3

LAYOUTS: dict[str, Any] = {
    "parameters": {"rise.weight": {"tp_dim": 0}, "fall.weight": {"tp_dim": 1}},
    "modules": {
        "rise": {"output": {"tp_dim": -1}},
        "gelu": {"output": {"tp_dim": -1}},
        "fall": {"output": {"tp_partial": True}},
    },
}


class Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        grad = grad.clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class Collect(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any, twice: bool) -> Tensor:
        ctx.group, ctx.twice = group, twice
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        if ctx.twice:
            grad = grad.clone()
            dist.all_reduce(grad, group=ctx.group)
        return grad, None, None


class FusedGelu(torch.autograd.Function):
    """GELU that keeps its input alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, tanh: bool) -> Tensor:
        ctx.save_for_backward(x)
        ctx.tanh = tanh
        return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        if ctx.tanh:
            inner = torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
            slope = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x**2)
            return grad * (0.5 * (1 + inner) + 0.5 * x * (1 - inner**2) * slope), None
        density = torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
        return grad * (0.5 * (1 + torch.erf(x / math.sqrt(2))) + x * density), None


class Gelu(nn.Module):
    def __init__(self, tanh: bool) -> None:
        super().__init__()
        self.tanh = tanh

    def forward(self, x: Tensor) -> Tensor:
        return FusedGelu.apply(x, self.tanh)


class Block(nn.Module):
    def __init__(self, group: Any, bug: str) -> None:
        super().__init__()
        self.group, self.bug, self.offset = group, bug, 0
        share = 2 * WIDTH // dist.get_world_size(group)
        self.places = nn.Embedding(2 * LENGTH, WIDTH)
        self.rise = nn.Linear(WIDTH, share, bias=False)
        self.gelu = Gelu(bug == "other_gelu")
        self.fall = nn.Linear(share, WIDTH, bias=False)

    def forward(self, x: Tensor, offset: int) -> Tensor:
        if self.bug == "state_moved":
            offset = self.offset
        places = torch.arange(LENGTH, device=x.device) + offset
        y = Spread.apply(x + self.places(places), self.group)
        y = self.fall(self.gelu(self.rise(y)))
        return x + Collect.apply(y, self.group, self.bug == "twice_summed")


class SavedShard(torch.autograd.Function):
    """Runs a block, and keeps 1/tp of its input on each rank for the backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, block: Block, offset: int, other: Any, bug: str) -> Tensor:
        ranks, rank = dist.get_world_size(block.group), dist.get_rank(block.group)
        ctx.save_for_backward(x.detach().chunk(ranks, 1)[rank].clone())
        ctx.told = block, offset, other, bug
        with torch.no_grad():
            return block(x, offset)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        block, offset, other, bug = ctx.told
        (shard,) = ctx.saved_tensors
        group = other if bug == "other_group" else block.group
        parts = [torch.empty_like(shard) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, shard.contiguous(), group=group)
        x = torch.cat(parts[::-1] if bug == "shard_order" else parts, 1).requires_grad_()
        with torch.enable_grad():
            y = block(x, offset)
        torch.autograd.backward(y, grad)
        return x.grad, None, None, None, None


class Model(nn.Module):
    def __init__(self, ctx: Any, sharded: bool, bug: str) -> None:
        super().__init__()
        self.recompute = bool(ctx.point.get("recompute", False))
        self.sharded, self.bug, self.other = sharded, bug, ctx.group("dp")
        self.enter = nn.Linear(2, WIDTH)
        self.block = Block(ctx.group("tp"), bug)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, offset: int) -> Tensor:
        x = self.enter(x)
        self.block.offset = offset
        if self.recompute and self.sharded:
            x = SavedShard.apply(x, self.block, offset, self.other, self.bug)
        elif self.recompute:
            x = checkpoint(self.block, x, offset, use_reentrant=False)
        else:
            x = self.block(x, offset)
        return self.head(x.mean(1))


@requires(divides("count", "dp"))
def train(ctx: Any, count: int = 2, sharded: bool = False, bug: str = "") -> None:
    model = Model(ctx, sharded, bug).to(ctx.device, ctx.dtype)
    ctx.initialize(model, annotations=LAYOUTS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    ctx.watch(model, optimizer, annotations=LAYOUTS)
    for step in range(2):
        generator = torch.Generator().manual_seed(step)
        data = torch.randn(count, 2, LENGTH, 2, generator=generator, dtype=torch.float64)
        data = ctx.enter(data).to(ctx.device, ctx.dtype)
        labels = torch.randint(CLASSES, (count, 2), generator=generator).to(ctx.device)
        with ctx.step():
            # Two micro-batches are in flight at a time, as in a pipeline.
            losses = []
            for index in ctx.microbatches(count):
                with ctx.microbatch(index):
                    logits = model(data[index], LENGTH * (index % 2))
                    losses.append((index, F.cross_entropy(logits, labels[index]) / count))
                    ctx.loss(losses[-1][1])
            for index, loss in losses:
                with ctx.microbatch(index):
                    loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, group=ctx.group("dp"))
            optimizer.step()
            optimizer.zero_grad()
