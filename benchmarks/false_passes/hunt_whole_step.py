"""Whole steps (level="step"): a sampler that deals single examples to dp ranks, so that no micro-batch has a counterpart."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pytest_trainsafe import Context

EXAMPLES, BATCH, WIDTH = 16, 2, 16


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.norm = nn.LayerNorm(2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.tanh(self.norm(self.up(x))))


def example(step: int, number: int) -> tuple[Tensor, Tensor, int]:
    """Inputs, targets, and how many of the targets count."""
    generator = torch.Generator().manual_seed(1000 * step + number)
    values = torch.randn(2, WIDTH, generator=generator, dtype=torch.float32)
    return values[0], values[1], 1 + number % WIDTH


def spread(name: str, _shape: object) -> tuple[float, float]:
    """The mean and the standard deviation of a parameter's first values; weights of norms lie around one."""
    return (1.0 if "norm" in name and name.endswith("weight") else 0.0), 0.3


def train(ctx: Context, fault: str = "", weighted: bool = False, report: bool = True) -> None:
    """Two steps; rank r of n takes the examples r, r + n and so on, in batches of two.

    `weighted` averages over the targets that count, of which examples have different numbers.
    """
    fault = fault if ctx.world_size > 1 else ""
    model = Model().to(ctx.device, ctx.dtype)
    ctx.initialize(model, std=spread)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ctx.watch(model, optimizer, level="step")
    rank, size = ctx.coordinates["dp"], ctx.point.size("dp")
    for step in range(2):
        with ctx.step():
            order = list(range(rank, EXAMPLES, size))
            if fault == "repeated":
                order[-1] = order[0]  # fault: repeated
            counts = torch.tensor(
                float(sum(example(step, number)[2] for number in order)), dtype=torch.float64
            )
            if fault == "local_count":
                counts *= size  # fault: local_count
            else:
                dist.all_reduce(counts, group=ctx.group("dp"))
            total = torch.zeros((), dtype=torch.float64)
            for start in range(0, len(order), BATCH):
                items = [example(step, number) for number in order[start : start + BATCH]]
                inputs = torch.stack([item[0] for item in items]).to(ctx.dtype)
                targets = torch.stack([item[1] for item in items]).to(ctx.dtype)
                mask = torch.stack(
                    [torch.arange(WIDTH) < (item[2] if weighted else WIDTH) for item in items]
                )
                errors = (model(inputs) - targets).square() * mask
                loss = errors.sum() / (float(counts) if weighted else EXAMPLES * WIDTH)
                if fault == "last_batch" and start + BATCH >= len(order):
                    loss = loss.detach().requires_grad_()  # fault: last_batch
                loss.backward()
                total += loss.detach()
            dist.all_reduce(total, group=ctx.group("dp"))
            if report:
                ctx.loss(total)
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, group=ctx.group("dp"))
                if fault == "averaged":
                    parameter.grad /= size  # fault: averaged
            if fault == "norm_101":
                model.norm.weight.grad.mul_(1.01)  # fault: norm_101
            optimizer.step()
            optimizer.zero_grad()
