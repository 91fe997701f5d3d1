"""Causal attention with context parallelism, heads cut over tp, and recomputed layers.

Keys and values are gathered over cp, as in Llama 3 (Grattafiori et al., 2024).  A recomputed layer
keeps only its input, of which each tp rank keeps a part (Megatron-LM's distributed saved
activations).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_trainsafe import divides, requires

LENGTH, BATCH, HEADS, VOCABULARY = 8, 1, 4, 12

ANNOTATIONS = {
    "cp_order": "contiguous",
    "loss": {"partial": ["cp"]},
    "parameters": {
        "query.weight": {"tp_dim": 0},
        "key.weight": {"tp_dim": 0},
        "value.weight": {"tp_dim": 0},
        "project.weight": {"tp_dim": 1},
    },
    "modules": {
        "*": {"output": {"cp_dim": 1}},
        "position": {"output": {"cp_dim": 0}},
        "query": {"output": {"cp_dim": 1, "tp_dim": -1}},
        "key": {"output": {"cp_dim": 1, "tp_dim": -1}},
        "value": {"output": {"cp_dim": 1, "tp_dim": -1}},
        "attention": {"output": {"cp_dim": 1, "tp_dim": -1}},
        "project": {"output": {"cp_dim": 1, "tp_partial": True}},
    },
}


def _sum(x: Tensor, group: Any) -> Tensor:
    total = x.clone()
    dist.all_reduce(total, group=group)
    return total


def _gather(x: Tensor, group: Any) -> list[Tensor]:
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, x.contiguous(), group=group)
    return parts


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
        return torch.cat(_gather(x, group), 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        parts = _sum(grad, ctx.group).chunk(dist.get_world_size(ctx.group), 1)
        return parts[dist.get_rank(ctx.group)].contiguous(), None


class Place:
    """The groups of this rank, and which part of an input it keeps for the recomputation."""

    def __init__(self, ctx: Any, fault: str) -> None:
        self.tp, self.cp = ctx.group("tp"), ctx.group("cp")
        self.tp_size, self.cp_size = ctx.point.size("tp"), ctx.point.size("cp")
        self.tp_rank, self.cp_rank = ctx.coordinates["tp"], ctx.coordinates["cp"]
        self.kept = self.tp_rank
        if fault == "kept-part":
            self.kept = ctx.rank // self.cp_size % self.tp_size  # fault: kept-part


class _Recomputed(torch.autograd.Function):
    """A layer that keeps its input only, one part on each tp rank, and runs again backward."""

    @staticmethod
    def forward(ctx: Any, layer: nn.Module, place: Place, x: Tensor, *_: Tensor) -> Tensor:
        ctx.layer, ctx.place = layer, place
        ctx.save_for_backward(x.chunk(place.tp_size, -1)[place.kept].contiguous())
        with torch.no_grad():
            return layer(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        (part,) = ctx.saved_tensors
        x = torch.cat(_gather(part, ctx.place.tp), -1).requires_grad_()
        parameters = tuple(ctx.layer.parameters())
        with torch.enable_grad():
            output = ctx.layer(x)
        return None, None, *torch.autograd.grad(output, (x, *parameters), grad)


class Attention(nn.Module):
    """Each rank's queries look at all keys before them."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place = place

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        heads, local = HEADS // self.place.tp_size, query.shape[1]
        key = _GatherSequence.apply(key, self.place.cp)
        value = _GatherSequence.apply(value, self.place.cp)
        query, key, value = (
            each.unflatten(-1, (heads, -1)).transpose(1, 2) for each in (query, key, value)
        )
        scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
        mine = self.place.cp_rank * local + torch.arange(local, device=query.device)
        later = torch.arange(key.shape[2], device=query.device) > mine[:, None]
        weights = scores.masked_fill(later, -torch.inf).softmax(-1)
        return (weights @ value).transpose(1, 2).flatten(2)


class Layer(nn.Module):
    """Residual attention."""

    def __init__(self, hidden: int, place: Place) -> None:
        super().__init__()
        self.place = place
        local = hidden // place.tp_size
        self.norm = nn.LayerNorm(hidden)
        self.query = nn.Linear(hidden, local, bias=False)
        self.key = nn.Linear(hidden, local, bias=False)
        self.value = nn.Linear(hidden, local, bias=False)
        self.attention = Attention(place)
        self.project = nn.Linear(local, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = _Copy.apply(self.norm(x), self.place.tp)
        attended = self.attention(self.query(inner), self.key(inner), self.value(inner))
        return x + _Sum.apply(self.project(attended), self.place.tp)


class Model(nn.Module):
    """Tokens to logits, for this rank's part of the sequence."""

    def __init__(self, layers: int, hidden: int, place: Place, recompute: bool) -> None:
        super().__init__()
        self.place, self.recompute = place, recompute
        self.embedding = nn.Embedding(VOCABULARY, hidden)
        self.position = nn.Embedding(LENGTH, hidden)
        self.layers = nn.ModuleList(Layer(hidden, place) for _ in range(layers))
        self.final = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        local = tokens.shape[1]
        positions = self.place.cp_rank * local + torch.arange(local, device=tokens.device)
        x = self.embedding(tokens) + self.position(positions)
        for layer in self.layers:
            if self.recompute:
                x = _Recomputed.apply(layer, self.place, x, *layer.parameters())
            else:
                x = layer(x)
        return self.head(self.final(x))


def _batch(index: int, place: Place) -> tuple[Tensor, Tensor]:
    """This cp rank's part of a micro-batch."""
    generator = torch.Generator().manual_seed(200 + index)
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=generator)
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    return (
        inputs.chunk(place.cp_size, 1)[place.cp_rank].contiguous(),
        targets.chunk(place.cp_size, 1)[place.cp_rank].contiguous(),
    )


def _sum_over_cp(grad: Tensor, place: Place, fault: str) -> Tensor:
    """The sum of the terms of all cp ranks, in one order on all of them."""
    group = place.cp
    if fault == "term-group" and place.cp_size > 1:
        group = place.tp  # fault: term-group
    terms = _gather(grad, group)
    return torch.stack([terms[each] for each in range(place.cp_size)]).sum(0)


def _tp_divides_heads(point: Any, _arguments: Any) -> str | None:
    if HEADS % point.size("tp"):
        return f"{HEADS} heads are not divisible by tp={point.size('tp')}"
    return None


def _cp_divides_length(point: Any, _arguments: Any) -> str | None:
    if LENGTH % point.size("cp"):
        return f"{LENGTH} tokens are not divisible by cp={point.size('cp')}"
    return None


@requires(
    divides("microbatches", "dp"), divides("hidden", "tp"), _tp_divides_heads, _cp_divides_length
)
def train(
    ctx: Any, layers: int = 1, hidden: int = 8, microbatches: int = 2, fault: str = ""
) -> None:
    """Train one step."""
    fault = fault if ctx.world_size > 1 else ""
    place = Place(ctx, fault)
    recompute = bool(ctx.point.get("recompute", False))
    model = Model(layers, hidden, place, recompute).to(ctx.device, ctx.dtype)
    ctx.initialize(model, annotations=ANNOTATIONS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ctx.watch(model, optimizer, annotations=ANNOTATIONS)
    with ctx.step():
        for index in ctx.microbatches(microbatches):
            with ctx.microbatch(index):
                tokens, targets = (each.to(ctx.device) for each in _batch(index, place))
                logits = model(tokens)
                wide = logits if logits.dtype == torch.float64 else logits.float()
                loss = F.cross_entropy(wide.flatten(0, 1), targets.flatten(), reduction="sum")
                loss = loss / (microbatches * BATCH * LENGTH)
                ctx.loss(loss)
                loss.backward()
        for parameter in model.parameters():
            parameter.grad = _sum_over_cp(parameter.grad, place, fault)
            dist.all_reduce(parameter.grad, group=ctx.group("dp"))
        optimizer.step()
        optimizer.zero_grad()
