"""Training with dropout whose masks belong to the examples, in parallel over dp, tp (sp) and cp."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_trainsafe import (
    PerExampleDropout,
    logical_positions,
    per_example_generator,
    per_example_keys,
)
from pytest_trainsafe.core.layout import Shard
from pytest_trainsafe.reference_models.parallel.axes import Axis
from pytest_trainsafe.reference_models.parallel.regions import (
    copy_into,
    gather_into,
    join_shards,
    reduce_out,
    scatter_out,
    split_into_shards,
)

EXAMPLES, BATCH, SEQUENCE, WIDTH, INNER = 8, 2, 8, 8, 16

ANNOTATIONS = {
    "cp_order": "contiguous",
    "loss": {"partial": ["cp"]},
    "parameters": {"up.weight": {"tp_dim": 0}, "down.weight": {"tp_dim": 1}},
    "modules": {
        "*": {"output": {"cp_dim": 1}},
        "up": {"output": {"cp_dim": 1, "tp_dim": -1}},
        "inner_drop": {"output": {"cp_dim": 1, "tp_dim": -1}},
        "down": {"output": {"cp_dim": 1, "tp_partial": True}},
        "drop": {"output": {"cp_dim": 1, "sp_dim": 1}},
    },
}


class Model(nn.Module):
    """A residual MLP: `up` is cut over tp by columns and `down` by rows.

    With sp, the residual stream [batch, sequence, width] is cut over tp along the sequence.
    """

    def __init__(self, ctx: Any, p: float, own_generator: bool) -> None:
        super().__init__()
        size = ctx.point.size("tp")
        self.tp = Axis(size, ctx.coordinates["tp"], ctx.group("tp") if size > 1 else None)
        self.sp = size > 1 and bool(ctx.point.get("sp", False))
        self.up = nn.Linear(WIDTH, INNER // size, bias=False)
        self.down = nn.Linear(INNER // size, WIDTH, bias=False)
        self.inner_drop: nn.Module = PerExampleDropout(p, "inner_drop")
        self.drop: nn.Module = PerExampleDropout(p, "drop")
        if own_generator:
            self.inner_drop, self.drop = Drawn(p), Drawn(p)
        # Which part of the logical activations this rank holds.
        cp, tp = Shard(1, "cp"), (Shard(1, "tp"),) if self.sp else ()
        stands = ctx.coordinates, ctx.point.sizes, ctx.device
        self.inner = logical_positions((cp, Shard(2, "tp")), (BATCH, SEQUENCE, INNER), *stands)
        self.stream = logical_positions((cp, *tp), (BATCH, SEQUENCE, WIDTH), *stands)

    def forward(self, x: Tensor, examples: Tensor) -> Tensor:
        if self.tp.size == 1:
            inner = self.inner_drop(F.relu(self.up(x)), examples, self.inner)
            return x + self.drop(self.down(inner), examples, self.stream)
        if self.sp:
            x = split_into_shards(x, 1, self.tp)
        whole = gather_into(x, 1, self.tp) if self.sp else copy_into(x, self.tp)
        terms = self.down(self.inner_drop(F.relu(self.up(whole)), examples, self.inner))
        narrow = scatter_out(terms, 1, self.tp) if self.sp else reduce_out(terms, self.tp)
        x = x + self.drop(narrow, examples, self.stream)
        return join_shards(x, 1, self.tp) if self.sp else x


class Drawn(nn.Module):
    """The mistake that the test looks for: masks from the rank's own default generator."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor, _examples: Tensor, _positions: object) -> Tensor:
        return F.dropout(x, self.p, self.training)


def train(ctx: Any, p: float = 0.1, own_generator: bool = False) -> None:
    """Train two epochs of one step each, in four micro-batches of two examples."""
    model = Model(ctx, p, own_generator).to(ctx.dtype)
    ctx.initialize(model, annotations=ANNOTATIONS)
    torch.manual_seed(ctx.seed + ctx.rank)  # after the parameters, of which ranks hold copies
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ctx.watch(model, optimizer, annotations=ANNOTATIONS)
    total = EXAMPLES // BATCH
    for epoch in range(2):
        with ctx.step():
            for index in ctx.microbatches(total):
                with ctx.microbatch(index):
                    indices = range(index * BATCH, (index + 1) * BATCH)
                    examples = per_example_keys(epoch, indices, seed=ctx.seed)
                    x = torch.stack([load(ctx, epoch, each) for each in indices])
                    output = model(x.to(ctx.dtype), examples)
                    loss = output.square().sum() / (BATCH * SEQUENCE * WIDTH)
                    ctx.loss(loss)
                    (loss / total).backward()
            for parameter in model.parameters():
                for axis in ("dp", "cp"):
                    if ctx.point.size(axis) > 1:
                        dist.all_reduce(parameter.grad, group=ctx.group(axis))
            optimizer.step()
            optimizer.zero_grad()


def load(ctx: Any, epoch: int, index: int) -> Tensor:
    """An example with noise added, which is another in every epoch; this cp rank's part of it."""

    # In one dtype at every rung: torch draws other numbers for float64 than for float32.
    def normal(generator: torch.Generator) -> Tensor:
        return torch.randn(SEQUENCE, WIDTH, generator=generator, dtype=torch.float32)

    noise = normal(per_example_generator(epoch, index, seed=ctx.seed, stream="noise"))
    noisy = normal(torch.Generator().manual_seed(index)) + 0.1 * noise
    return noisy.chunk(ctx.point.size("cp"))[ctx.coordinates["cp"]]
