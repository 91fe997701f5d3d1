"""A language model that is cut over the vocabulary, with sequence parallelism.

The vocabulary is padded to a multiple of eight, and the padding takes no part in the loss.  The
output layer may share its weight with the embedding.  The ideas are those of Megatron-LM (Shoeybi
et al., 2019) and of sequence parallelism (Korthikanti et al., 2022).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_trainsafe import divides, requires

LENGTH, BATCH, MULTIPLE = 4, 2, 8

ANNOTATIONS = {
    "parameters": {
        "embedding.weight": {"tp_dim": 0},
        "head.weight": {"tp_dim": 0, "optional": True},
        "up.weight": {"tp_dim": 0},
        "up.bias": {"tp_dim": 0},
        "down.weight": {"tp_dim": 1},
        "down.bias": {"sequence_parallel": True},
        "norm.weight": {"sequence_parallel": True},
        "norm.bias": {"sequence_parallel": True},
        "final.weight": {"sequence_parallel": True},
        "final.bias": {"sequence_parallel": True},
    },
    "modules": {
        "embedding": {"output": {"sp_dim": 1}},
        "norm": {"output": {"sp_dim": 1}},
        "up": {"output": {"tp_dim": -1}},
        "activation": {"output": {"tp_dim": -1}},
        "down": {"output": {"sp_dim": 1}},
        "final": {"output": {"sp_dim": 1}},
        "head": {"output": {"tp_dim": -1}},
    },
}


def _sum(x: Tensor, group: Any) -> Tensor:
    total = x.clone()
    dist.all_reduce(total, group=group)
    return total


def _gather(x: Tensor, group: Any) -> Tensor:
    """The parts of all ranks, joined along the sequence."""
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, x.contiguous(), group=group)
    return torch.cat(parts, 1)


def _part(x: Tensor, group: Any) -> Tensor:
    """This rank's part of the sequence."""
    return x.chunk(dist.get_world_size(group), 1)[dist.get_rank(group)].contiguous()


class _Copy(torch.autograd.Function):
    """The input, whose gradients are summed over the group."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _sum(grad, ctx.group), None


class _Sum(torch.autograd.Function):
    """The sum over the group."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        return _sum(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class _GatherSequence(torch.autograd.Function):
    """The whole sequence; the gradient is summed, and each rank keeps its part."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return _gather(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _part(_sum(grad, ctx.group), ctx.group), None


class _ScatterSequence(torch.autograd.Function):
    """This rank's part of the sum over the group."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return _part(_sum(x, group), group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _gather(grad, ctx.group), None


class Region:
    """How activations enter and leave the layers that are cut over tp."""

    def __init__(self, group: Any, sp: bool) -> None:
        self.group, self.sp = group, sp
        self.size, self.rank = dist.get_world_size(group), dist.get_rank(group)

    def enter(self, x: Tensor) -> Tensor:
        return (_GatherSequence if self.sp else _Copy).apply(x, self.group)

    def leave(self, x: Tensor) -> Tensor:
        return (_ScatterSequence if self.sp else _Sum).apply(x, self.group)


class _CrossEntropy(torch.autograd.Function):
    """The cross entropy of logits of which each rank holds some columns."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, region: Region) -> Tensor:
        logits = logits if logits.dtype == torch.float64 else logits.float()
        width = logits.shape[-1]
        greatest = logits.amax(-1)
        dist.all_reduce(greatest, op=dist.ReduceOp.MAX, group=region.group)
        shifted = logits - greatest[..., None]
        exponentials = shifted.exp()
        total = _sum(exponentials.sum(-1), region.group)
        local = targets - region.rank * width
        mine = (local >= 0) & (local < width)
        local = local.clamp(0, width - 1)
        chosen = shifted.gather(-1, local[..., None])[..., 0]
        chosen = _sum(torch.where(mine, chosen, 0.0), region.group)
        ctx.save_for_backward(exponentials / total[..., None], local, mine)
        return total.log() - chosen

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        probabilities, local, mine = ctx.saved_tensors
        difference = probabilities.clone()
        difference.scatter_add_(-1, local[..., None], -mine[..., None].to(difference.dtype))
        return difference * grad[..., None], None, None


class Embedding(nn.Module):
    """An embedding of which each rank holds some of the words."""

    def __init__(self, words: int, hidden: int, region: Region) -> None:
        super().__init__()
        self.region = region
        self.weight = nn.Parameter(torch.empty(words // region.size, hidden))

    def forward(self, tokens: Tensor) -> Tensor:
        words = self.weight.shape[0]
        local = tokens - self.region.rank * words
        mine = (local >= 0) & (local < words)
        found = F.embedding(local.clamp(0, words - 1), self.weight)
        return self.region.leave(found * mine[..., None])


class Column(nn.Module):
    """A linear layer of which each rank computes some of the columns."""

    def __init__(self, inputs: int, outputs: int, region: Region, bias: bool = True) -> None:
        super().__init__()
        self.region = region
        self.weight = nn.Parameter(torch.empty(outputs // region.size, inputs))
        self.bias = nn.Parameter(torch.empty(outputs // region.size)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.region.enter(x), self.weight, self.bias)


class Row(nn.Module):
    """A linear layer of whose inputs each rank holds some of the columns."""

    def __init__(self, inputs: int, outputs: int, region: Region, early_bias: bool) -> None:
        super().__init__()
        self.region, self.early_bias = region, early_bias
        self.weight = nn.Parameter(torch.empty(outputs, inputs // region.size))
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, x: Tensor) -> Tensor:
        if self.early_bias and not self.region.sp:
            return self.region.leave(F.linear(x, self.weight, self.bias))  # fault: early-bias
        return self.region.leave(F.linear(x, self.weight)) + self.bias


class Model(nn.Module):
    """The sum of the losses of a micro-batch's tokens."""

    def __init__(
        self, vocabulary: int, hidden: int, tied: bool, region: Region, fault: str
    ) -> None:
        super().__init__()
        self.vocabulary, self.region, self.fault = vocabulary, region, fault
        words = -(-vocabulary // MULTIPLE) * MULTIPLE
        self.embedding = Embedding(words, hidden, region)
        self.norm = nn.LayerNorm(hidden)
        self.up = Column(hidden, 2 * hidden, region)
        self.activation = nn.GELU()
        self.down = Row(2 * hidden, hidden, region, fault == "early-bias")
        self.final = nn.LayerNorm(hidden)
        self.head = Column(hidden, words, region, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.embedding(tokens)
        x = x + self.down(self.activation(self.up(self.norm(x))))
        logits = self.head(self.final(x))
        width = logits.shape[-1]
        columns = self.region.rank * width + torch.arange(width, device=logits.device)
        if self.fault != "padding-mask" or self.region.size == 1:  # fault: padding-mask
            logits = logits.masked_fill(columns >= self.vocabulary, -torch.inf)
        return _CrossEntropy.apply(logits, targets, self.region).sum()


def _batch(index: int, vocabulary: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 + index)
    tokens = torch.randint(vocabulary, (BATCH, LENGTH + 1), generator=generator)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


@requires(divides("microbatches", "dp"), divides("hidden", "tp"))
def train(
    ctx: Any,
    vocabulary: int = 16,
    hidden: int = 8,
    tied: bool = False,
    microbatches: int = 2,
    fault: str = "",
) -> None:
    """Train one step."""
    fault = fault if ctx.world_size > 1 else ""
    sp = ctx.point.size("tp") > 1 and bool(ctx.point.get("sp", False))
    region = Region(ctx.group("tp"), sp)
    model = Model(vocabulary, hidden, tied, region, fault).to(ctx.device, ctx.dtype)
    ctx.initialize(model, annotations=ANNOTATIONS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ctx.watch(model, optimizer, annotations=ANNOTATIONS)
    with ctx.step():
        for index in ctx.microbatches(microbatches):
            with ctx.microbatch(index):
                tokens, targets = (each.to(ctx.device) for each in _batch(index, vocabulary))
                loss = model(tokens, targets) / (microbatches * BATCH * LENGTH)
                ctx.loss(loss)
                loss.backward()
        if sp:  # what each rank applied to its part of the sequence
            for parameter in (
                *model.norm.parameters(),
                *model.final.parameters(),
                model.down.bias,
            ):
                dist.all_reduce(parameter.grad, group=ctx.group("tp"))
        parameters = list(model.parameters())
        if fault == "tied-twice":
            parameters = [
                each
                for module in model.modules()
                for each in module.parameters(recurse=False)  # fault: tied-twice
            ]
        for parameter in parameters:
            dist.all_reduce(parameter.grad, group=ctx.group("dp"))
        optimizer.step()
        optimizer.zero_grad()
