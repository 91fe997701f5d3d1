"""Attention with fewer heads of keys and values than tp ranks: neighbours share a head.

Each rank computes with its own heads of queries, so that the gradient of a shared head, and that of
the norm of its keys, is a sum over the ranks that hold it.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from pytest_trainsafe import Context

HIDDEN, HEADS, KEYS, MICROBATCHES = 8, 4, 2, 2
SIZE = HIDDEN // HEADS


def shared(dim: int, rows: int) -> Any:
    """A function that places the `rows` rows of each head of keys in the dimension `dim`."""

    def place(coordinates: Any, sizes: Any, shape: tuple[int, ...]) -> Any:
        held = max(1, KEYS // sizes["tp"])
        first = coordinates["tp"] * KEYS // sizes["tp"]
        whole = tuple(KEYS * rows if n == dim else length for n, length in enumerate(shape))
        slices = [slice(None)] * len(shape)
        slices[dim] = slice(first * rows, (first + held) * rows)
        return whole, slices

    return place


HEAD = {"slices": shared(0, SIZE), "axes": ["tp"], "gradient_partial": ["tp"]}
NORMED = {"slices": shared(2, 1), "axes": ["tp"]}
ANNOTATIONS = {
    "parameters": {
        "query": {"tp_dim": 0},
        "keys": HEAD,
        "values": HEAD,
        "out": {"tp_dim": 1},
        "norm.weight": {"gradient_partial": ["tp"]},
    },
    "modules": {"norm": {"output": NORMED, "output_grad": {**NORMED, "tp_partial": True}}},
}


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        total = x.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class Attention(nn.Module):
    """Its input needs no gradient, so that nothing is reduced in the backward."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__()
        ranks = dist.get_world_size(group)
        self.group, self.heads, self.shared = group, HEADS // ranks, max(1, KEYS // ranks)
        self.query = nn.Parameter(torch.empty(self.heads * SIZE, HIDDEN))
        self.keys = nn.Parameter(torch.empty(self.shared * SIZE, HIDDEN))
        self.values = nn.Parameter(torch.empty(self.shared * SIZE, HIDDEN))
        self.out = nn.Parameter(torch.empty(HIDDEN, self.heads * SIZE))
        self.norm = nn.RMSNorm(SIZE)

    def forward(self, x: Tensor) -> Tensor:
        weights = (self.query, self.keys, self.values)
        q, k, v = ((x @ weight.t()).unflatten(-1, (-1, SIZE)) for weight in weights)
        k, v = (t.repeat_interleave(self.heads // self.shared, 2) for t in (self.norm(k), v))
        mixed = scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)))
        return _Sum.apply(mixed.transpose(1, 2).flatten(2) @ self.out.t(), self.group)


def _sharing(group: dist.ProcessGroup) -> dist.ProcessGroup | None:
    """The group of the tp ranks that hold this rank's head; None if it holds whole ones."""
    ranks = dist.get_process_group_ranks(group)
    together, own = max(1, len(ranks) // KEYS), None
    for first in range(0, len(ranks) if together > 1 else 0, together):
        members = ranks[first : first + together]
        made = dist.new_group(members)
        own = made if dist.get_rank() in members else own
    return own


def train(ctx: Context, fault: str = "") -> None:
    tp = ctx.group("tp")
    model = Attention(tp).to(ctx.device, ctx.dtype)
    ctx.initialize(model, annotations=ANNOTATIONS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ctx.watch(model, optimizer, annotations=ANNOTATIONS)
    sharing = _sharing(tp)
    for step in range(2):
        with ctx.step():
            for index in ctx.microbatches(MICROBATCHES):
                with ctx.microbatch(index):
                    drawn = torch.Generator().manual_seed(10 * step + index)
                    x = torch.randn(2, 5, HIDDEN, generator=drawn, dtype=ctx.dtype)
                    loss = model(x).square().mean() / MICROBATCHES
                    ctx.loss(loss)
                    loss.backward()
            gradient = model.norm.weight.grad
            assert gradient is not None
            dist.all_reduce(gradient, group=tp)
            if fault == "halved" and dist.get_world_size(tp) > 1:
                gradient.div_(2)
            for weight in (model.keys, model.values):
                if sharing is not None and fault != "not summed":
                    dist.all_reduce(weight.grad, group=sharing)
            optimizer.step()
            optimizer.zero_grad()
