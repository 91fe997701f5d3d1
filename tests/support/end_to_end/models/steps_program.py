"""Trains over dp for several steps; each mistake begins in a later step than the first."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

HIDDEN, BATCH = 16, 4


class Block(nn.Module):
    """A residual block whose linear layer gets the input divided by its root mean square.

    From call `stale` on, the divisor is not computed again.
    """

    def __init__(self, stale: int) -> None:
        super().__init__()
        self.linear = nn.Linear(HIDDEN, HIDDEN)
        self.stale, self.calls = stale, 0
        self.scale: Tensor | None = None

    def forward(self, hidden: Tensor) -> Tensor:
        if self.scale is None or self.calls < self.stale:
            self.scale = hidden.square().mean().rsqrt().detach()
        self.calls += 1
        return hidden + self.linear(hidden * self.scale).tanh()


def train(ctx: Any, steps: int = 4, mistake: str = "", first: int = 1) -> None:
    """`mistake` acts from step `first` on; without one (or on one rank) the training is right."""
    mistake = mistake if ctx.world_size > 1 else ""
    numbers = ctx.microbatches(2)
    fresh = first * len(numbers) if mistake == "scale" else steps * len(numbers)
    model = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), Block(fresh), nn.Linear(HIDDEN, HIDDEN))
    model.to(ctx.device, ctx.dtype)
    ctx.initialize(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    # The schedule of rank r runs ahead by r steps, from step `first` on.
    ahead = ctx.rank if mistake == "schedule" else 0

    def rate(step: int) -> float:
        return 0.9 ** (step + (ahead if step >= first else 0))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    ctx.watch(model, optimizer)
    buffers: dict[nn.Parameter, Tensor] = {}
    for step in range(steps):
        with ctx.step():
            for index in numbers:
                data = torch.Generator().manual_seed(step * 2 + index)
                batch = torch.randn(BATCH, HIDDEN, generator=data, dtype=torch.float64)
                with ctx.microbatch(index):
                    loss = model(batch.to(ctx.dtype)).square().mean() / 2
                    ctx.loss(loss)
                    loss.backward()
            for parameter in model.parameters():
                assert parameter.grad is not None
                if mistake == "buffer" and step >= first and parameter.ndim == 1:
                    parameter.grad.copy_(buffers[parameter])  # the previous step's gradient
                else:
                    dist.all_reduce(parameter.grad, group=ctx.group("dp"))
                    buffers[parameter] = parameter.grad.clone()
            if mistake == "counter" and step >= first:
                for state in optimizer.state.values():
                    state["step"].zero_()
            if mistake == "moments" and step == first:
                optimizer.state.clear()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()


def without_amax_history(ctx: Any, steps: int = 3, **arguments: Any) -> None:
    """The reference GPT in FP8, whose amax history is updated on a single device only."""
    from pytest_trainsafe.reference_models import gpt
    from pytest_trainsafe.reference_models.parallel import fp8

    names: Any = fp8  # where the training looks the function up
    finish = names.finish_step
    if ctx.world_size > 1:
        names.finish_step = lambda quantizers, axes: None
    try:
        gpt.train(ctx, steps=steps, fp8=True, **arguments)
    finally:
        names.finish_step = finish
