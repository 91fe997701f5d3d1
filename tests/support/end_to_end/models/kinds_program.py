"""Small programs with optional faults in gradient clipping, buffers, input data or masks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

# Imported by name before recording starts, as in most programs.
from torch.nn.utils import clip_grad_norm_

from pytest_trainsafe.reference_models import gpt
from pytest_trainsafe.reference_models.parallel.tensor.embedding import VocabParallelEmbedding

WIDTH, TOTAL, STEPS = 6, 4, 2
MEAN = {"gradients": {"mean": ["dp"]}}


def clipped(
    ctx: Any,
    sharded: bool = False,
    halved: bool = False,
    function: str = "norm",
    declared: bool = True,
) -> None:
    """Data parallel, hand-written or FSDP2, with clipping that changes the gradients.

    `halved` divides every gradient by 2 before clipping, which hides it; `declared` annotates
    gradients as means over dp.
    """
    model = nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, WIDTH))
    model.to(ctx.device, ctx.dtype)
    if sharded and ctx.world_size > 1:
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=ctx.mesh["dp"])
    ctx.initialize(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ctx.watch(model, optimizer, annotations=MEAN if declared else None)
    own = ctx.microbatches(TOTAL)
    for step in range(STEPS):
        with ctx.step():
            for index in own:
                with ctx.microbatch(index):
                    loss = model(drawn(ctx, step, index)).square().mean() / len(own)
                    ctx.loss(loss * len(own))
                    loss.backward()
            for parameter in model.parameters():
                assert parameter.grad is not None
                if not sharded:
                    dist.all_reduce(parameter.grad, group=ctx.group("dp"))
                    parameter.grad /= ctx.point.size("dp")
                if halved:
                    parameter.grad /= 2
            if function == "norm":
                clip_grad_norm_(model.parameters(), 1e-3)
            elif function == "value":
                torch.nn.utils.clip_grad_value_(model.parameters(), 1e-3)
            optimizer.step()
            optimizer.zero_grad()


def late(ctx: Any, fault: bool = False) -> None:
    """All forwards, and then all backwards outside of their micro-batches."""
    model = nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, WIDTH))
    model.to(ctx.device, ctx.dtype)
    ctx.initialize(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    ctx.watch(model, optimizer)
    if fault:
        model[1].register_full_backward_hook(lambda _, given, __: (given[0] * 1.01,))  # type: ignore[index]
    with ctx.step():
        losses = []
        for index in ctx.microbatches(TOTAL):
            with ctx.microbatch(index):
                losses.append(model(drawn(ctx, 0, index)).square().mean() / TOTAL)
                ctx.loss(losses[-1])
        for loss in losses:
            loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, group=ctx.group("dp"))
        optimizer.step()


class Normed(nn.Module):
    """Batch normalisation, a table of constants, and an average that is updated once a step."""

    table: Tensor
    average: Tensor
    rank: Tensor

    def __init__(self, momentum: float) -> None:
        super().__init__()
        self.enter = nn.Linear(WIDTH, 8)
        self.norm = nn.BatchNorm1d(8, momentum=momentum)
        self.leave = nn.Linear(8, 1)
        self.register_buffer("table", torch.linspace(0, 1, 8), persistent=False)
        self.register_buffer("average", torch.zeros(8, WIDTH))
        self.register_buffer("rank", torch.zeros((), dtype=torch.int64))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.leave(self.norm(self.enter(inputs)) + self.table)


def normed(ctx: Any, momentum: float = 0.1, fault: str = "") -> None:
    """Train over dp or tp with every tensor replicated.

    `forward` adds `table`, so the fault `drift` also changes later steps.  The other buffers do not
    affect the parameters.
    """
    model = Normed(momentum).to(ctx.device, ctx.dtype)
    ctx.initialize(model)
    model.rank.fill_(ctx.rank)  # different on each rank from the start
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    ctx.watch(model, optimizer, annotations=MEAN)
    own = ctx.microbatches(TOTAL)
    for step in range(STEPS):
        with ctx.step():
            for index in own:
                with ctx.microbatch(index):
                    loss = model(drawn(ctx, step, index)).square().mean() / len(own)
                    ctx.loss(loss * len(own))
                    loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, group=ctx.group("dp"))
                parameter.grad /= ctx.point.size("dp")
            optimizer.step()
            optimizer.zero_grad()
            model.average.lerp_(model.enter.weight.detach(), 0.5)
            if fault == "drift" and ctx.rank == 1:
                model.table.mul_(1.01)
            if fault == "average" and ctx.rank == 1:
                model.average.mul_(1.01)


class Reader(nn.Module):
    """Computes a loss; with `local`, positions count from the start of the rank's cp shard."""

    def __init__(self, local: bool, first: int) -> None:
        super().__init__()
        self.words = nn.Embedding(12, 8)
        self.places = nn.Embedding(8, 8)
        self.head = nn.Linear(8, 12)
        self.loss = Loss()
        self.first = first if local else 0

    def forward(self, tokens: Tensor, positions: Tensor, labels: Tensor) -> Tensor:
        hidden = self.words(tokens) + self.places(positions + self.first)
        return self.loss(self.head(hidden), labels)


class Loss(nn.Module):
    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")


CUT = {
    "cp_order": "contiguous",
    "loss": {"partial": ["cp"]},
    "modules": {"*": {"output": {"cp_dim": 1}}, "loss": {"output": {"cp_partial": True}},
                "": {"output": {"cp_partial": True}}},
}  # fmt: skip


def read(ctx: Any, fault: str = "", local: bool = False) -> None:
    """Train over dp and cp on batches that may be wrong.

    With `local`, positions begin at 0 on each cp rank.
    """
    length, cp, at = 8, ctx.point.size("cp"), ctx.coordinates["cp"]
    own_part = slice(at * length // cp, (at + 1) * length // cp)
    model = Reader(local, own_part.start).to(ctx.device, ctx.dtype)
    ctx.initialize(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    ctx.watch(model, optimizer, annotations=CUT)
    with ctx.step():
        for index in ctx.microbatches(TOTAL):
            number = index % 2 if fault == "same batch" else index
            draw = torch.Generator().manual_seed(number)
            text = torch.randint(12, (2, length + 1), generator=draw)
            tokens, labels = text[:, :-1], text[:, 1:]
            if fault == "shuffled":
                tokens, labels = tokens.flip(0), labels.flip(0)
            if fault == "tokens":
                tokens = (tokens + 1) % 12
            if fault == "labels":
                labels = tokens
            positions = torch.arange(length)[None].expand(2, -1)
            given = [each[:, own_part] for each in (tokens, positions, labels)]
            if local:
                given[1] = given[1] - own_part.start
            with ctx.microbatch(index):
                loss = model(*given) / (2 * length * TOTAL)
                if fault == "model":
                    loss = loss * 1.01
                ctx.loss(loss)
                loss.backward()
        for parameter in model.parameters():
            for axis in ("dp", "cp"):
                dist.all_reduce(parameter.grad, group=ctx.group(axis))
        optimizer.step()


def drawn(ctx: Any, step: int, index: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 * step + index)
    return torch.randn(5, WIDTH, generator=generator, dtype=torch.float64).to(ctx.dtype)


def at_the_boundary(ctx: Any, wrong: bool = False, **arguments: Any) -> None:
    """The GPT; `wrong` has `>` instead of `>=` in the mask of the vocabulary shards.

    The earlier rank then also looks up the first token of the next shard, so two ranks' vectors
    are summed for it.
    """
    if wrong:
        VocabParallelEmbedding.forward = _forward_wrong_by_one  # type: ignore[method-assign]
    gpt.train(ctx, **arguments)


def _forward_wrong_by_one(self: VocabParallelEmbedding, tokens: Tensor) -> Tensor:
    first = self.axes.tp.rank * self.rows
    foreign = (tokens < first) | (tokens > first + self.rows)
    rows = (tokens - first).masked_fill(foreign, 0).clamp(max=self.rows - 1)
    vectors = F.embedding(rows, self.weight).masked_fill(foreign[..., None], 0)
    total = vectors.clone()
    dist.all_reduce(total, group=self.axes.tp.group)
    return vectors + (total - vectors).detach()
