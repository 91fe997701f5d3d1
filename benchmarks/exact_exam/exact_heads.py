"""Attention whose heads are cut over tp: fused projections, shared key heads, norms of heads.

Each rank cuts its part of the fused projection out of the whole one, as a loader of checkpoints
does.

Bugs, by the argument `bug`:

- "qkv_straight": the fused rows are cut into equal runs, not each of q, k and v (partitioning;
  awslabs/slapo pull request 46, deepspeedai/DeepSpeed pull request 3844).
- "qkv_reversed": k and v change places in the rows of all ranks but the first (partitioning, a
  wrong interleave; the trap of tenstorrent/tt-metal pull request 52818).
- "shared_no_sum": the one key and value head is held by every rank, and its gradient is not summed
  over tp (communication; bigcode-project/Megatron-LM pull request 37).
- "norm_no_sum": the norm of query heads gets the gradient of this rank's heads only (communication;
  NVIDIA-NeMo/RL issue 3716).
- "heads_scale": the softmax scale counts a head's width from the rank's share of the heads
  (scaling; TrainVerify, arXiv 2506.15961).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_trainsafe import divides, requires

HEADS, SIZE, WIDTH, VOCABULARY = 4, 2, 6, 9

LAYOUTS: dict[str, Any] = {
    "parameters": {
        "query.weight": {"tp_dim": 0},
        "fused.weight": {"tp_dim": 0, "blocks": [HEADS * SIZE] * 3},
        "out.weight": {"tp_dim": 1},
        "query_norm.weight": {"gradient_partial": ["tp"]},
        "shared.weight": {"gradient_partial": ["tp"]},
    },
    "modules": {
        "query": {"output": {"tp_dim": -1}},
        "fused": {"output": {"tp_dim": -1, "blocks": [HEADS * SIZE] * 3}},
        "query_norm": {"output": {"tp_dim": 1}},
        "shared": {"output_grad": {"tp_partial": True}},
        "out": {"output": {"tp_partial": True}},
    },
}


class ToShards(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        grad = grad.contiguous()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class FromShards(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        x = x.contiguous().clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class HeadNorm(nn.Module):
    """A root mean square norm of each head, with one weight for all heads."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(SIZE))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.weight


class Attention(nn.Module):
    """Causal attention; with `fused` one projection makes q, k and v, else all heads share k, v."""

    def __init__(self, group: Any, fused: bool, bug: str) -> None:
        super().__init__()
        self.group, self.bug, self.ranks = group, bug, dist.get_world_size(group)
        share = HEADS * SIZE // self.ranks
        if fused:
            self.fused = nn.Linear(WIDTH, 3 * share, bias=False)
        else:
            self.query = nn.Linear(WIDTH, share, bias=False)
            self.shared = nn.Linear(WIDTH, 2 * SIZE, bias=False)
            self.query_norm = HeadNorm()
        self.has_fused = fused
        self.out = nn.Linear(share, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        heads = HEADS // self.ranks
        x = ToShards.apply(x, self.group)
        if self.has_fused:
            q, k, v = (
                each.view(batch, length, heads, SIZE).transpose(1, 2)
                for each in self.fused(x).chunk(3, -1)
            )
        else:
            q = self.query(x).view(batch, length, heads, SIZE).transpose(1, 2)
            q = self.query_norm(q)
            k, v = self.shared(x).view(batch, length, 2, SIZE).transpose(1, 2).chunk(2, 1)
        size = SIZE * heads / HEADS if self.bug == "heads_scale" else SIZE
        scores = q @ k.transpose(-1, -2) / size**0.5
        future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(future, float("-inf")).softmax(-1)
        mixed = (weights @ v).transpose(1, 2).reshape(batch, length, heads * SIZE)
        return FromShards.apply(self.out(mixed), self.group)


class Decoder(nn.Module):
    def __init__(self, group: Any, fused: bool, bug: str) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = Attention(group, fused, bug)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        return self.head(x + self.attention(self.norm(x)))


def _cut(whole: Tensor, rank: int, ranks: int, bug: str) -> Tensor:
    """This rank's rows of a fused projection."""
    if bug == "qkv_straight":
        return whole.chunk(ranks, 0)[rank]
    q, k, v = (each.chunk(ranks, 0)[rank] for each in whole.chunk(3, 0))
    if bug == "qkv_reversed" and rank > 0:
        k, v = v, k
    return torch.cat([q, k, v], 0)


def _load_fused(ctx: Any, model: Decoder, bug: str) -> None:
    """Fills the fused projection from a whole one, which every rank has."""
    source = nn.ModuleDict({"qkv": nn.Linear(WIDTH, 3 * HEADS * SIZE, bias=False)})
    source.to(ctx.device, ctx.dtype)
    ctx.initialize(source)
    group = ctx.group("tp")
    with torch.no_grad():
        whole = source["qkv"].weight
        mine = _cut(whole, dist.get_rank(group), dist.get_world_size(group), bug)
        model.attention.fused.weight.copy_(mine)


@requires(divides("heads", "tp"))
def train(ctx: Any, heads: int = HEADS, fused: bool = True, bug: str = "") -> None:
    group = ctx.group("tp")
    model = Decoder(group, fused, bug).to(ctx.device, ctx.dtype)
    layouts = _layouts(fused)
    ctx.initialize(model, annotations=layouts)
    if fused:
        _load_fused(ctx, model, bug)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    ctx.watch(model, optimizer, annotations=layouts)
    summed = [] if fused else [model.attention.shared.weight, model.attention.query_norm.weight]
    for step in range(2):
        generator = torch.Generator().manual_seed(step)
        tokens = torch.randint(VOCABULARY, (2, 2, 6), generator=generator).to(ctx.device)
        with ctx.step():
            for index in ctx.microbatches(2):
                with ctx.microbatch(index):
                    logits = model(tokens[index, :, :-1])
                    loss = F.cross_entropy(logits.flatten(0, 1), tokens[index, :, 1:].flatten()) / 2
                    ctx.loss(loss)
                    loss.backward()
            for parameter in summed:
                skip = "norm_no_sum" if parameter.ndim == 1 else "shared_no_sum"
                if bug != skip:
                    dist.all_reduce(parameter.grad, group=group)
            optimizer.step()
            optimizer.zero_grad()


def _layouts(fused: bool) -> dict[str, Any]:
    """The entries for the modules that this model has."""
    mine = ("fused", "out") if fused else ("query", "shared", "out")
    return {
        kind: {name: entry for name, entry in entries.items() if name.startswith(mine)}
        for kind, entries in LAYOUTS.items()
    }
