"""A pipeline of two stages that marks its own micro-batches (all forwards, then all backwards, as GPipe does)."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pytest_trainsafe import Context

BATCH, WIDTH, TOTAL = 4, 16, 4


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.linear(self.norm(x)))


def batch(step: int, index: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + index)
    values = torch.randn(2, BATCH, WIDTH, generator=generator, dtype=torch.float32)
    return values[0], values[1]


def spread(name: str, _shape: object) -> tuple[float, float]:
    """The mean and the standard deviation of a parameter's first values; weights of norms lie around one."""
    return (1.0 if "norm" in name and name.endswith("weight") else 0.0), 0.3


def train(ctx: Context, fault: str = "", layers: int = 4, steps: int = 2) -> None:
    """Steps of four micro-batches; the last stage has a final norm."""
    fault = fault if ctx.world_size > 1 else ""
    stage, stages = ctx.coordinates["pp"], ctx.point.size("pp")
    first, last = stage == 0, stage == stages - 1
    share = layers // stages
    parts = nn.ModuleDict(
        {str(number): Layer() for number in range(stage * share, (stage + 1) * share)}
    )
    if last:
        parts["final_norm"] = nn.LayerNorm(WIDTH)
    parts = parts.to(ctx.device, ctx.dtype)
    ctx.initialize(parts, std=spread)
    rate = 0.1
    if fault == "stage_rate" and last:
        rate = 0.11  # fault: stage_rate
    optimizer = torch.optim.SGD(parts.parameters(), lr=rate)
    ctx.watch(parts, optimizer)
    for step in range(steps):
        with ctx.step():
            numbers = list(ctx.microbatches(TOTAL))
            pairs: dict[int, tuple[Tensor, Tensor]] = {}
            for number in numbers:
                with ctx.microbatch(number):
                    inputs, targets = (each.to(ctx.dtype) for each in batch(step, number))
                    if not first:
                        inputs = torch.empty_like(inputs)
                        dist.recv(inputs, group=ctx.group("pp"), group_src=stage - 1)
                        inputs.requires_grad_()
                    x = inputs
                    for part in parts.values():
                        x = part(x)
                    if last:
                        x = (x - targets).square().mean() / TOTAL
                        ctx.loss(x)
                    else:
                        dist.send(x.detach(), group=ctx.group("pp"), group_dst=stage + 1)
                    pairs[number] = (inputs, x)
            for number in numbers:
                with ctx.microbatch(number):
                    inputs, output = pairs[number]
                    grad = None
                    if not last:
                        grad = torch.empty_like(output)
                        dist.recv(grad, group=ctx.group("pp"), group_src=stage + 1)
                        if fault == "last_backward" and number == numbers[-1] and step == steps - 1:
                            grad.zero_()  # fault: last_backward
                    output.backward(grad)
                    if not first:
                        sent = inputs.grad
                        if fault == "stale_gradient" and number > 0:
                            sent = pairs[number - 1][0].grad  # fault: stale_gradient
                        dist.send(sent, group=ctx.group("pp"), group_dst=stage - 1)
            if fault == "final_norm" and last:
                parts["final_norm"].weight.grad.mul_(1.01)  # fault: final_norm
            optimizer.step()
            if fault == "first_stage_no_zero" and first:
                continue  # fault: first_stage_no_zero
            optimizer.zero_grad()
