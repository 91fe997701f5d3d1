"""Sequence parallelism: between the projections, each tp rank holds a part of the sequence.

Bugs, by the argument `bug`:

- "norm_no_sum": gradients of the final norm are not summed over tp (communication;
  NVIDIA/Megatron-LM issue 1446, EleutherAI/gpt-neox pull request 1257).
- "bias_no_sum": the bias after the reduce-scatter gets the gradient of this rank's positions only
  (communication; the question of NVIDIA/Megatron-LM pull request 236).
- "gather_split": the backward of the gather before a column-parallel layer keeps a slice of the
  partial gradient instead of a reduce-scatter (communication; awslabs/slapo pull request 20).
- "scatter_sum": the backward of the split after the embedding sums over tp, which counts nothing
  twice, and then the embedding's gradient is summed again (doubled communication; the neighbourhood
  of NVIDIA/Megatron-LM issue 1635).
- "norm_mean": gradients of norms are averaged over tp, not summed (scaling; EleutherAI/gpt-neox
  pull request 1259).
- "local_mean": the mean over the sequence is that of this rank's positions (C1, a dimension that
  may not be cut without a reduction; TrainVerify, arXiv 2506.15961).
- "gather_order": the gather concatenates the ranks' parts backwards (partitioning;
  NVIDIA/TransformerEngine issue 530 concatenated along the wrong dimension).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_trainsafe import divides, requires

VOCABULARY, WIDTH, BATCH = 8, 4, 2

LAYOUTS: dict[str, Any] = {
    "parameters": {
        "up.weight": {"tp_dim": 0},
        "down.weight": {"tp_dim": 1},
        "down.bias": {"sequence_parallel": True},
        "norm.weight": {"sequence_parallel": True},
        "norm.bias": {"sequence_parallel": True},
        "last.weight": {"sequence_parallel": True},
        "last.bias": {"sequence_parallel": True},
        "embed.weight": {"sequence_parallel": True},
    },
    "modules": {
        "norm": {"output": {"sp_dim": 1}},
        "up": {"output": {"tp_dim": -1}},
        "down": {"output": {"sp_dim": 1}},
        "last": {"output": {"sp_dim": 1}},
        "block": {"output": {"sp_dim": 1}},
        "embed": {"output_grad": {"sp_partial": True}},
    },
}


class Split(torch.autograd.Function):
    """This rank's positions of what every rank holds whole."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any, summed: bool) -> Tensor:
        ctx.group, ctx.summed, ctx.length = group, summed, x.shape[1]
        return x.chunk(dist.get_world_size(group), 1)[dist.get_rank(group)].contiguous()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        share = grad.shape[1]
        whole = grad.new_zeros(grad.shape[0], ctx.length, grad.shape[2])
        whole.narrow(1, dist.get_rank(ctx.group) * share, share).copy_(grad)
        if ctx.summed:
            dist.all_reduce(whole, group=ctx.group)
        return whole, None, None


def _gather(x: Tensor, group: Any, backwards: bool = False) -> Tensor:
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, x.contiguous(), group=group)
    return torch.cat(parts[::-1] if backwards else parts, 1)


def _reduce_scatter(x: Tensor, group: Any) -> Tensor:
    """The sum over ranks, of which each rank keeps its positions."""
    parts = [each.contiguous() for each in x.chunk(dist.get_world_size(group), 1)]
    mine = torch.empty_like(parts[0])
    dist.reduce_scatter(mine, parts, group=group)
    return mine


class Gather(torch.autograd.Function):
    """All positions, for a layer of which each rank computes a part."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any, bug: str) -> Tensor:
        ctx.group, ctx.bug = group, bug
        return _gather(x, group, bug == "gather_order")

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        if ctx.bug == "gather_split":
            ranks, rank = dist.get_world_size(ctx.group), dist.get_rank(ctx.group)
            return grad.chunk(ranks, 1)[rank].contiguous(), None, None
        return _reduce_scatter(grad, ctx.group), None, None


class Scatter(torch.autograd.Function):
    """The sum of partial outputs, of which each rank keeps its positions."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return _reduce_scatter(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _gather(grad, ctx.group), None


class SumOver(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        y = x.clone()
        dist.all_reduce(y, group=group)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class Down(nn.Module):
    def __init__(self, wide: int, group: Any) -> None:
        super().__init__()
        self.group = group
        self.weight = nn.Parameter(torch.empty(WIDTH, wide))
        self.bias = nn.Parameter(torch.empty(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return Scatter.apply(F.linear(x, self.weight), self.group) + self.bias


class Up(nn.Module):
    def __init__(self, wide: int, group: Any, bug: str) -> None:
        super().__init__()
        self.group, self.bug = group, bug
        self.weight = nn.Parameter(torch.empty(wide, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(Gather.apply(x, self.group, self.bug), self.weight)


class Block(nn.Module):
    def __init__(self, group: Any, bug: str) -> None:
        super().__init__()
        wide = 2 * WIDTH // dist.get_world_size(group)
        self.norm = nn.LayerNorm(WIDTH)
        self.up = Up(wide, group, bug)
        self.down = Down(wide, group)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.silu(self.up(self.norm(x))))


class Classifier(nn.Module):
    """A class for a whole sequence, from the mean over its positions."""

    def __init__(self, group: Any, bug: str) -> None:
        super().__init__()
        self.group, self.bug = group, bug
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.block = Block(group, bug)
        self.last = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        x = Split.apply(self.embed(tokens), self.group, self.bug == "scatter_sum")
        x = self.last(self.block(x))
        if self.bug == "local_mean":
            return self.head(x.mean(1))
        return self.head(SumOver.apply(x.sum(1), self.group) / tokens.shape[1])


@requires(divides("length", "tp"))
def train(ctx: Any, length: int = 6, bug: str = "") -> None:
    group = ctx.group("tp")
    if ctx.point.size("tp") > 1 and not ctx.point.get("sp", False):
        raise ValueError("this program has tensor parallelism only with sequence parallelism")
    model = Classifier(group, bug).to(ctx.device, ctx.dtype)
    ctx.initialize(model, annotations=LAYOUTS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    ctx.watch(model, optimizer, annotations=LAYOUTS)
    partial = [*model.block.norm.parameters(), *model.last.parameters(), model.embed.weight]
    for step in range(2):
        generator = torch.Generator().manual_seed(step)
        tokens = torch.randint(VOCABULARY, (2, BATCH, length), generator=generator).to(ctx.device)
        labels = torch.randint(3, (2, BATCH), generator=generator).to(ctx.device)
        with ctx.step():
            for index in ctx.microbatches(2):
                with ctx.microbatch(index):
                    loss = F.cross_entropy(model(tokens[index]), labels[index]) / 2
                    ctx.loss(loss)
                    loss.backward()
            for parameter in partial:
                if bug == "norm_no_sum" and any(parameter is e for e in model.last.parameters()):
                    continue
                dist.all_reduce(parameter.grad, group=group)
                if bug == "norm_mean" and parameter.ndim == 1:
                    parameter.grad /= dist.get_world_size(group)
            if bug != "bias_no_sum":
                dist.all_reduce(model.block.down.bias.grad, group=group)
            optimizer.step()
            optimizer.zero_grad()
