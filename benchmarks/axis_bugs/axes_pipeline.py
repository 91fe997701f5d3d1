"""A pipeline that runs all forwards, then all backwards (GPipe, Huang et al., 2019).

Stages hold unequal numbers of layers if they have to.  A tied output layer uses a copy of the
embedding on the last stage, whose gradient is summed with that of the first, as in Megatron-LM.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_trainsafe import divides, requires

LENGTH, BATCH, VOCABULARY = 3, 2, 10
SCALES = {1: 1.0, 2: 0.5, 3: 0.3333, 4: 0.25}


class Layer(nn.Module):
    """A residual layer, whose branch is scaled by the depth of the whole model."""

    def __init__(self, hidden: int, depth: int) -> None:
        super().__init__()
        self.scale = (2 * depth) ** -0.5
        self.norm = nn.LayerNorm(hidden)
        self.linear = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.linear(self.norm(x)).tanh() * self.scale


class Head(nn.Module):
    """The logits, by a weight of its own or by the embedding's."""

    def __init__(self, hidden: int, tied: bool) -> None:
        super().__init__()
        self.weight = None if tied else nn.Parameter(torch.empty(VOCABULARY, hidden))

    def forward(self, x: Tensor, embedding: Tensor | None) -> Tensor:
        return F.linear(x, embedding if self.weight is None else self.weight)


class Stage(nn.Module):
    """The layers of one stage, by their numbers in the whole model."""

    def __init__(
        self, stage: int, stages: int, layers: int, hidden: int, tied: bool, depth: int
    ) -> None:
        super().__init__()
        self.first, self.last, self.tied = stage == 0, stage == stages - 1, tied
        counts = [layers // stages + (each < layers % stages) for each in range(stages)]
        start = sum(counts[:stage])
        if self.first or (self.last and tied):
            self.embedding = nn.Embedding(VOCABULARY, hidden)
            if tied and stages > 1:
                self.embedding.weight.shared_embedding = True
        self.layers = nn.ModuleDict(
            {str(start + each): Layer(hidden, depth) for each in range(counts[stage])}
        )
        if self.last:
            self.final = nn.LayerNorm(hidden)
            self.head = Head(hidden, tied)

    def forward(self, x: Tensor) -> Tensor:
        if self.first:
            x = self.embedding(x)
        for layer in self.layers.values():
            x = layer(x)
        if self.last:
            x = self.head(self.final(x), self.embedding.weight if self.tied else None)
        return x


def _batch(index: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(300 + index)
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=generator)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def _run(ctx: Any, model: Stage, hidden: int, microbatches: int, scale: float) -> None:
    """The forwards and the backwards of one step, on this rank's stage."""
    group, stage, stages = ctx.group("pp"), ctx.coordinates["pp"], ctx.point.size("pp")
    before = dist.get_global_rank(group, stage - 1) if stage else None
    after = dist.get_global_rank(group, stage + 1) if stage + 1 < stages else None
    numbers, inputs, outputs = ctx.microbatches(microbatches), [], []
    for index in numbers:
        with ctx.microbatch(index):
            tokens, targets = (each.to(ctx.device) for each in _batch(index))
            if before is None:
                x = tokens
            else:
                x = torch.empty(BATCH, LENGTH, hidden, device=ctx.device, dtype=ctx.dtype)
                dist.recv(x, src=before, group=group)
                x.requires_grad_()
            y = model(x)
            if after is None:
                wide = y if y.dtype == torch.float64 else y.float()
                y = F.cross_entropy(wide.flatten(0, 1), targets.flatten()) * scale
                ctx.loss(y)
            else:
                dist.send(y.detach().contiguous(), dst=after, group=group)
            inputs.append(x)
            outputs.append(y)
    for index, x, y in zip(numbers, inputs, outputs, strict=True):
        with ctx.microbatch(index):
            if after is None:
                y.backward()
            else:
                grad = torch.empty_like(y)
                dist.recv(grad, src=after, group=group)
                y.backward(grad)
            if before is not None:
                dist.send(x.grad, dst=before, group=group)


def _sum_tied(ctx: Any, model: Stage, hidden: int) -> None:
    """The sum of the embedding's gradients on the first and the last stage."""
    if model.first or model.last:
        grad = model.embedding.weight.grad
    else:
        grad = torch.zeros(VOCABULARY, hidden, device=ctx.device, dtype=ctx.dtype)
    dist.all_reduce(grad, group=ctx.group("pp"))


def _enough_layers(point: Any, arguments: Any) -> str | None:
    layers = arguments.get("layers", 2)
    if layers < point.size("pp"):
        return f"layers={layers} are fewer than pp={point.size('pp')}"
    return None


@requires(divides("microbatches", "dp"), _enough_layers)
def train(
    ctx: Any,
    layers: int = 2,
    hidden: int = 8,
    microbatches: int = 2,
    tied: bool = False,
    fault: str = "",
) -> None:
    """Train one step."""
    fault = fault if ctx.world_size > 1 else ""
    stages = ctx.point.size("pp")
    depth, scale = layers, 1 / microbatches
    if fault == "whole-depth":
        depth = layers // stages * stages  # fault: whole-depth
    if fault == "rounded-scale" and stages > 1:
        scale = SCALES.get(microbatches, scale)  # fault: rounded-scale
    model = Stage(ctx.coordinates["pp"], stages, layers, hidden, tied, depth)
    model.to(ctx.device, ctx.dtype)
    ctx.initialize(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ctx.watch(model, optimizer)
    with ctx.step():
        _run(ctx, model, hidden, microbatches, scale)
        if tied and stages > 1 and fault != "tied-sum":  # fault: tied-sum
            _sum_tied(ctx, model, hidden)
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, group=ctx.group("dp"))
        optimizer.step()
        optimizer.zero_grad()
