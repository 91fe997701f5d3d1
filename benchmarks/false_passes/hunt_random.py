"""Dropout whose masks follow from the numbers of micro-batches, so that they are the same at each Point.

Seeds that forget the dp rank or the step, other probabilities, evaluation mode, and recomputation that draws again
(`preserve_rng_state=False` of torch.utils.checkpoint).
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pytest_trainsafe import Context

BATCH, WIDTH, TOTAL = 4, 16, 4


class Model(nn.Module):
    def __init__(self, p: float, recompute: bool, fault: str) -> None:
        super().__init__()
        self.recompute, self.fault = recompute, fault
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.first = nn.Dropout(p)
        self.middle = nn.Linear(2 * WIDTH, WIDTH)
        second = 0.3 if fault == "second_p" else p  # fault: second_p
        self.second = nn.Dropout(second)
        self.head = nn.Linear(WIDTH, WIDTH)

    def inner(self, x: Tensor) -> Tensor:
        inside = self.first(torch.tanh(self.up(x)))
        if self.fault == "unscaled":
            inside = inside * (1 - self.first.p)  # fault: unscaled
        return self.second(torch.tanh(self.middle(inside)))

    def forward(self, x: Tensor) -> Tensor:
        if self.recompute:
            preserve = self.fault != "drawn_again"  # fault: drawn_again
            return self.head(
                x + checkpoint(self.inner, x, use_reentrant=False, preserve_rng_state=preserve)
            )
        return self.head(x + self.inner(x))


def batch(step: int, index: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + index)
    values = torch.randn(2, BATCH, WIDTH, generator=generator, dtype=torch.float32)
    return values[0], values[1]


def spread(name: str, _shape: object) -> tuple[float, float]:
    """The mean and the standard deviation of a parameter's first values; weights of norms lie around one."""
    return (1.0 if "norm" in name and name.endswith("weight") else 0.0), 0.3


def train(ctx: Context, fault: str = "", p: float = 0.2, recompute: bool = False) -> None:
    """Two steps of four micro-batches."""
    fault = fault if ctx.world_size > 1 else ""
    model = Model(p, recompute, fault).to(ctx.device, ctx.dtype)
    ctx.initialize(model, std=spread)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ctx.watch(model, optimizer)
    if fault == "rank1_eval" and ctx.coordinates["dp"] == 1:
        model.eval()  # fault: rank1_eval
    for step in range(2):
        with ctx.step():
            for place, index in enumerate(ctx.microbatches(TOTAL)):
                with ctx.microbatch(index):
                    number = index
                    if fault == "local_seed":
                        number = place  # fault: local_seed
                    if fault == "same_each_step":
                        torch.manual_seed(ctx.seed + number)  # fault: same_each_step
                    else:
                        torch.manual_seed(ctx.seed + 1000 * step + number)
                    inputs, targets = (each.to(ctx.dtype) for each in batch(step, index))
                    loss = (model(inputs) - targets).square().mean() / TOTAL
                    ctx.loss(loss)
                    loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, group=ctx.group("dp"))
            if fault == "bias_101":
                model.head.bias.grad.mul_(1.01)  # fault: bias_101
            optimizer.step()
            optimizer.zero_grad()
