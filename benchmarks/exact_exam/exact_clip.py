"""Gradient clipping by the norm of all gradients, where ranks hold parts of them.

Bugs, by the argument `bug`:

- "shard_norm": the norm covers this rank's shards only (communication; facebookresearch/fairscale
  pull request 167).
- "replicas_counted": the squares of replicated gradients are summed over tp (doubled communication;
  NVIDIA-NeMo/RL pull request 3788).
- "norm_of_norms": the sum over ranks is that of norms, not of their squares (scaling;
  facebookresearch/fairscale pull request 167 took a maximum).
- "before_reduction": the norm is taken before gradients are summed over dp (scheduling;
  NVIDIA-NeMo/Automodel pull request 3477 normed partial gradients).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pytest_trainsafe import divides, requires

WIDTH, LIMIT = 4, 0.05

LAYOUTS: dict[str, Any] = {
    "parameters": {"wide.weight": {"tp_dim": 0}, "narrow.weight": {"tp_dim": 1}},
    "modules": {
        "wide": {"output": {"tp_dim": -1}},
        "narrow": {"output": {"tp_partial": True}},
    },
}


class Inward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        grad = grad.clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class Outward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class Model(nn.Module):
    def __init__(self, group: Any) -> None:
        super().__init__()
        self.group = group
        share = 8 // dist.get_world_size(group)
        self.norm = nn.RMSNorm(WIDTH)
        self.wide = nn.Linear(WIDTH, share, bias=False)
        self.narrow = nn.Linear(share, WIDTH, bias=False)
        self.last = nn.Linear(WIDTH, 1)
        self.wide.weight.sharded = True
        self.narrow.weight.sharded = True

    def forward(self, x: Tensor) -> Tensor:
        y = self.wide(Inward.apply(self.norm(x), self.group)).relu()
        return self.last(x + Outward.apply(self.narrow(y), self.group)).squeeze(-1)


def _clip(ctx: Any, model: Model, bug: str) -> None:
    """Scales all gradients so that their norm is at most LIMIT."""
    if ctx.world_size == 1:
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), LIMIT)
        ctx.grad_norm(norm)
        return
    squares = {True: torch.zeros((), dtype=ctx.dtype), False: torch.zeros((), dtype=ctx.dtype)}
    for parameter in model.parameters():
        sharded = getattr(parameter, "sharded", False) or bug == "replicas_counted"
        squares[sharded] = squares[sharded] + parameter.grad.square().sum()
    if bug == "norm_of_norms":
        norms = squares[True].sqrt()
        dist.all_reduce(norms, group=ctx.group("tp"))
        norm = (norms.square() + squares[False]).sqrt()
    else:
        if bug != "shard_norm":
            dist.all_reduce(squares[True], group=ctx.group("tp"))
        norm = (squares[True] + squares[False]).sqrt()
    ctx.before_clip(norm, LIMIT)
    ctx.grad_norm(norm)
    factor = LIMIT / (norm + 1e-6)
    if factor < 1:
        for parameter in model.parameters():
            parameter.grad.mul_(factor)


@requires(divides("count", "dp"))
def train(ctx: Any, count: int = 2, bug: str = "") -> None:
    model = Model(ctx.group("tp")).to(ctx.device, ctx.dtype)
    ctx.initialize(model, annotations=LAYOUTS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    ctx.watch(model, optimizer, annotations=LAYOUTS)
    for step in range(2):
        generator = torch.Generator().manual_seed(step)
        data = torch.randn(count, 3, WIDTH + 1, generator=generator, dtype=torch.float64)
        data = ctx.enter(data).to(ctx.device, ctx.dtype)
        with ctx.step():
            for index in ctx.microbatches(count):
                with ctx.microbatch(index):
                    error = model(data[index, :, :WIDTH]) - data[index, :, WIDTH]
                    loss = error.square().sum() / (3 * count)
                    ctx.loss(loss)
                    loss.backward()
            if bug == "before_reduction":
                _clip(ctx, model, bug)
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, group=ctx.group("dp"))
            if bug != "before_reduction":
                _clip(ctx, model, bug)
            optimizer.step()
            optimizer.zero_grad()
