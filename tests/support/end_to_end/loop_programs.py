"""Training loops: batches split over dp, whole steps, and micro-batches in several orders."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

BATCH, WIDTH, CLASSES = 8, 6, 3


class BatchNorm(nn.Module):
    """Normalises over the batch, with sums over all ranks of `group`."""

    def __init__(self, width: int, group: Any, ranks: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.group, self.ranks = group, ranks

    def forward(self, x: Tensor) -> Tensor:
        count = x.shape[0] * self.ranks
        mean = self.total(x.sum(0)) / count
        variance = self.total((x - mean).square().sum(0)) / count
        return (x - mean) / torch.sqrt(variance + 1e-5) * self.weight + self.bias

    def total(self, terms: Tensor) -> Tensor:
        if self.ranks == 1:
            return terms
        import torch.distributed.nn.functional as collectives

        total: Tensor = collectives.all_reduce(terms, group=self.group)
        return total


class Net(nn.Module):
    def __init__(self, group: Any = None, ranks: int = 1) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 8)
        self.norm = BatchNorm(8, group, ranks)
        self.last = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.last(torch.tanh(self.norm(self.first(x))))
        return hidden


def batch(ctx: Any, number: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(number)
    x = torch.randn(BATCH, WIDTH, generator=draw, dtype=torch.float64).to(ctx.dtype)
    return x, torch.randint(CLASSES, (BATCH,), generator=draw)


def reduce(ctx: Any, model: nn.Module, but: str = "") -> None:
    for name, parameter in model.named_parameters():
        if ctx.point.size("dp") > 1 and name != but:
            dist.all_reduce(parameter.grad, group=ctx.group("dp"))


def split(ctx: Any, annotated: bool = True, declared: bool = True, fault: str = "") -> None:
    """Every dp rank trains on a slice of each batch; "statistics" normalises over it alone."""
    ranks, rank = ctx.point.size("dp"), ctx.coordinates["dp"]
    shared = ranks > 1 and fault != "statistics"
    model = Net(ctx.group("dp"), ranks) if shared else Net()
    model = model.to(ctx.dtype)
    ctx.initialize(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    cut = {"modules": {"*": {"output": {"dp_dim": 0}}}} if annotated else None
    ctx.watch(model, optimizer, annotations=cut)
    share = BATCH // ranks
    with ctx.step():
        for number in ctx.microbatches(2, order="split") if declared else range(2):
            x, labels = batch(ctx, number)
            mine = slice(rank * share, (rank + 1) * share)
            with ctx.microbatch(number):
                losses = nn.functional.cross_entropy(model(x[mine]), labels[mine], reduction="sum")
                ctx.loss(losses / share)
                (losses / (2 * BATCH)).backward()
        reduce(ctx, model)
        optimizer.step()


def whole_steps(ctx: Any, fault: str = "") -> None:
    """Samples are strided over dp ranks, so that only whole steps can be compared.

    `fault` leaves a bias out of the "reduction", or doubles the learning "rate".
    """
    ranks, rank = ctx.point.size("dp"), ctx.coordinates["dp"]
    model = nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, CLASSES)).to(ctx.dtype)
    ctx.initialize(model)
    odd = fault if ranks > 1 else ""
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2 if odd == "rate" else 1e-2)
    ctx.watch(model, optimizer, level="step")
    for step in range(2):
        ctx.begin_step()
        x, labels = batch(ctx, step)
        loss = nn.functional.cross_entropy(model(x[rank::ranks]), labels[rank::ranks])
        ctx.loss(loss)
        (loss / ranks).backward()
        reduce(ctx, model, but="0.bias" if odd == "reduction" else "")
        optimizer.step()
        optimizer.zero_grad()
        ctx.end_step()


def strided(ctx: Any, order: str = "strided") -> None:
    """Micro-batches are strided over dp ranks; `order` is the order that is declared."""
    ranks, rank = ctx.point.size("dp"), ctx.coordinates["dp"]
    model = nn.Linear(WIDTH, CLASSES).to(ctx.dtype)
    ctx.initialize(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ctx.watch(model, optimizer)
    with ctx.step():
        for number, dealt in zip(
            ctx.microbatches(4, order=order), range(rank, 4, ranks), strict=True
        ):
            x, labels = batch(ctx, dealt)
            with ctx.microbatch(number):
                loss = nn.functional.cross_entropy(model(x), labels) / 4
                ctx.loss(loss)
                loss.backward()
        reduce(ctx, model)
        optimizer.step()
