"""A program whose optimizer reduces gradients over dp inside its step, as some Muons do."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

MICROBATCHES, BATCH, WIDTH = 4, 3, 8


class Reducing(torch.optim.Optimizer):
    """SGD with momentum that averages each gradient over a group of ranks, padded and in shards.

    `fault` leaves out the reduction ("none"), or the division by the number of ranks ("sum").
    """

    def __init__(self, parameters: Any, group: Any, ranks: int, fault: str) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.group, self.ranks, self.fault = group, ranks, fault

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # takes no closure
        assert closure is None
        for group in self.param_groups:
            for parameter in group["params"]:
                momentum = self.state[parameter].setdefault(
                    "momentum_buffer", torch.zeros_like(parameter)
                )
                momentum.mul_(0.9).add_(self.reduced(parameter.grad))
                parameter.add_(momentum, alpha=-group["lr"])

    def reduced(self, gradient: Tensor) -> Tensor:
        if self.ranks == 1 or self.fault == "none":
            return gradient
        padding = -gradient.numel() % (2 * self.ranks) + 2 * self.ranks
        flat = nn.functional.pad(gradient.flatten(), (0, padding))
        shard = flat.new_empty(flat.numel() // self.ranks)
        dist.reduce_scatter_tensor(shard, flat, group=self.group)
        if self.fault != "sum":
            shard /= self.ranks
        dist.all_gather_into_tensor(flat, shard, group=self.group)
        return flat[: gradient.numel()].view_as(gradient)


def train(ctx: Any, fault: str = "") -> None:
    ranks = ctx.point.size("dp")
    model = nn.Sequential(nn.Linear(WIDTH, 12), nn.Tanh(), nn.Linear(12, WIDTH)).to(ctx.dtype)
    ctx.initialize(model)
    optimizer = Reducing(model.parameters(), ctx.group("dp"), ranks, fault)
    ctx.watch(model, optimizer, annotations={"gradients": {"mean": ["dp"]}})
    mine = ctx.microbatches(MICROBATCHES)
    for _ in range(2):
        with ctx.step():
            for index in mine:
                generator = torch.Generator().manual_seed(index)
                batch = torch.randn(BATCH, WIDTH, generator=generator, dtype=torch.float64)
                with ctx.microbatch(index):
                    loss = model(batch.to(ctx.dtype)).square().mean()
                    ctx.loss(loss)
                    (loss / len(mine)).backward()
            optimizer.step()
            optimizer.zero_grad()
