"""Batch normalization and a contrastive loss over a batch that is cut over dp.

Bugs, by the argument `bug`:

- "local_statistics": mean and variance are those of the rank's own examples (communication;
  ptrblck/pytorch_misc issue 5).
- "mean_variance": the variance is the mean of the ranks' variances (scaling;
  leggedrobotics/rsl_rl pull request 226).
- "unweighted": means of ranks with unequal numbers of examples are averaged (scaling;
  pytorch/pytorch issue 22192, PaddlePaddle/Paddle issue 32464).
- "statistics_detached": sums over ranks carry no gradient to the other ranks (C2, a tensor that
  dangles in the backward).
- "running_local": the running mean follows the rank's own examples (communication;
  NVIDIA-Merlin/HugeCTR issue 181).
- "gather_detached": gathered features carry no gradient, and each rank computes the loss of its own
  rows (C2; mlfoundations/open_clip issue 616).
- "own_index": the label of a row is its number within the rank (device assignment).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

INPUTS, WIDTH, EPS = 3, 4, 1e-5

LAYOUTS: dict[str, Any] = {"modules": {"*": {"output": {"dp_dim": 0}}}}


class SumRanks(torch.autograd.Function):
    """The sum over ranks; the gradient of each rank's term is the sum of all ranks' gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any, detached: bool) -> Tensor:
        ctx.group, ctx.detached = group, detached
        y = x.clone()
        dist.all_reduce(y, group=group)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        y = grad.clone()
        if not ctx.detached:
            dist.all_reduce(y, group=ctx.group)
        return y, None, None


class GatherRows(torch.autograd.Function):
    """The rows of all ranks; the backward sums what ranks want of each row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any, sizes: list[int]) -> Tensor:
        ctx.group, ctx.sizes = group, sizes
        return _rows(x, group, sizes)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        y = grad.clone()
        dist.all_reduce(y, group=ctx.group)
        return y.split(ctx.sizes)[dist.get_rank(ctx.group)], None, None


def _rows(x: Tensor, group: Any, sizes: list[int]) -> Tensor:
    padded = F.pad(x, (0, 0, 0, max(sizes) - len(x)))
    parts = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(parts, padded.contiguous(), group=group)
    return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])


class SyncNorm(nn.Module):
    """Batch normalization with the statistics of the whole batch."""

    running: Tensor

    def __init__(self, group: Any, bug: str) -> None:
        super().__init__()
        self.group, self.bug = group, bug
        self.weight = nn.Parameter(torch.empty(WIDTH))
        self.bias = nn.Parameter(torch.empty(WIDTH))
        self.register_buffer("running", torch.zeros(WIDTH))

    def total(self, x: Tensor) -> Tensor:
        return SumRanks.apply(x, self.group, self.bug == "statistics_detached")

    def forward(self, x: Tensor, count: int) -> Tensor:
        ranks = dist.get_world_size(self.group)
        if self.bug == "local_statistics":
            mean, var = x.mean(0), x.var(0, correction=0)
        elif self.bug == "unweighted":
            mean = self.total(x.mean(0)) / ranks
            var = self.total((x - mean).square().mean(0)) / ranks
        else:
            mean = self.total(x.sum(0)) / count
            if self.bug == "mean_variance":
                var = self.total(x.var(0, correction=0) * len(x)) / count
            else:
                var = self.total((x - mean).square().sum(0)) / count
        followed = x.mean(0) if self.bug == "running_local" else mean
        self.running.mul_(0.9).add_(followed.detach(), alpha=0.1)
        return (x - mean) / (var + EPS).sqrt() * self.weight + self.bias


class Tower(nn.Module):
    """Features of two views of each example."""

    def __init__(self, group: Any, bug: str) -> None:
        super().__init__()
        self.first = nn.Linear(INPUTS, WIDTH)
        self.norm = SyncNorm(group, bug)
        self.second = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, count: int) -> Tensor:
        y = self.second(self.norm(self.first(x), count).relu())
        return y / y.square().sum(-1, keepdim=True).add(1e-3).sqrt()


def _contrast(left: Tensor, right: Tensor, group: Any, sizes: list[int], bug: str) -> Tensor:
    """The sum over this rank's rows of the loss against all rows."""
    rank = dist.get_rank(group)
    start = sum(sizes[:rank])
    if bug == "gather_detached":
        every = _rows(right.detach(), group, sizes)
        every = torch.cat([every[:start], right, every[start + len(right) :]])
    else:
        every = GatherRows.apply(right, group, sizes)
    labels = torch.arange(len(left), device=left.device)
    if bug != "own_index":
        labels = labels + start
    return F.cross_entropy(left @ every.t() * 5.0, labels, reduction="sum")


def train(ctx: Any, count: int = 6, bug: str = "") -> None:
    group = ctx.group("dp")
    model = Tower(group, bug).to(ctx.device, ctx.dtype)
    ctx.initialize(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.01)
    ctx.watch(model, optimizer, annotations=LAYOUTS)
    ranks, rank = ctx.point.size("dp"), ctx.coordinates["dp"]
    sizes = [len(each) for each in torch.arange(count).chunk(ranks)]
    start = sum(sizes[:rank])
    for step in range(2):
        generator = torch.Generator().manual_seed(step)
        data = torch.randn(2, 2, count, INPUTS, generator=generator, dtype=torch.float64)
        data = ctx.enter(data).to(ctx.device, ctx.dtype)
        with ctx.step():
            for index in ctx.microbatches(2, order="split"):
                with ctx.microbatch(index):
                    mine = data[index, :, start : start + sizes[rank]]
                    left, right = model(mine[0], count), model(mine[1], count)
                    loss = _contrast(left, right, group, sizes, bug) / (2 * count)
                    ctx.loss(loss * ranks)
                    loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, group=group)
            optimizer.step()
            optimizer.zero_grad()
