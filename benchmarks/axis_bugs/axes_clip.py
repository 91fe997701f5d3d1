"""Gated MLPs that are cut over tp, recomputed blocks, and gradients that are clipped by their norm.

The projections of a gated MLP (Shazeer, 2020) are fused into one weight of two blocks.  The norm of
the gradients counts a parameter that every tp rank holds once.  `fault` may name several faults,
joined by a plus sign.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pytest_trainsafe import divides, requires

BATCH, WIDTH, MAX_NORM = 3, 6, 0.01


def _annotations(hidden: int, gated: bool) -> dict[str, Any]:
    up: dict[str, Any] = {"blocks": [2 * hidden, 2 * hidden]} if gated else {}
    return {
        "parameters": {"up.weight": {"tp_dim": 0, **up}, "down.weight": {"tp_dim": 1}},
        "modules": {
            "up": {"output": {"tp_dim": -1, **up}},
            "down": {"output": {"tp_partial": True}},
        },
    }


class _Copy(torch.autograd.Function):
    """The input, whose gradients are summed over the group."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        grad = grad.clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class _Sum(torch.autograd.Function):
    """The sum over the group."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        total = x.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class Block(nn.Module):
    """A residual MLP, with or without a gate."""

    def __init__(self, hidden: int, gated: bool, group: Any, striped: bool) -> None:
        super().__init__()
        self.gated, self.group = gated, group
        self.striped = striped and dist.get_world_size(group) > 1
        inner = 2 * hidden // dist.get_world_size(group)
        self.norm = nn.LayerNorm(hidden)
        self.up = nn.Linear(hidden, 2 * inner if gated else inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.up(_Copy.apply(self.norm(x), self.group))
        if not self.gated:
            inner = F.gelu(inner)
        elif self.striped:
            inner = F.silu(inner[..., 0::2]) * inner[..., 1::2]  # fault: striped-gate
        else:
            gate, value = inner.chunk(2, -1)
            inner = F.silu(gate) * value
        return x + _Sum.apply(self.down(inner), self.group)


class Model(nn.Module):
    """Some blocks between two small layers."""

    def __init__(
        self, layers: int, hidden: int, gated: bool, recompute: bool, group: Any, striped: bool
    ) -> None:
        super().__init__()
        self.recompute = recompute
        self.enter = nn.Linear(WIDTH, hidden)
        self.blocks = nn.ModuleList(Block(hidden, gated, group, striped) for _ in range(layers))
        self.leave = nn.Linear(hidden, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return self.leave(x)


def _batch(index: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(600 + index)
    x, y = torch.randn(2, BATCH, WIDTH, generator=generator, dtype=torch.float32)
    return x, y


def _clip(ctx: Any, model: nn.Module, all_cut: bool) -> None:
    """Scale the gradients so that the norm of all of them is `MAX_NORM` at most."""
    cut = torch.zeros((), dtype=torch.float64)
    whole = torch.zeros((), dtype=torch.float64)
    for name, parameter in model.named_parameters():
        square = parameter.grad.double().square().sum().cpu()
        if ".up." in name or ".down." in name or all_cut:  # fault: counted-twice
            cut += square
        else:
            whole += square
    cut = cut.to(ctx.device)
    dist.all_reduce(cut, group=ctx.group("tp"))
    norm = (cut.cpu() + whole).sqrt()
    ctx.before_clip(norm, MAX_NORM)
    ctx.grad_norm(norm)
    factor = min(1.0, MAX_NORM / float(norm))
    for parameter in model.parameters():
        parameter.grad.mul_(factor)


@requires(divides("microbatches", "dp"), divides("hidden", "tp"))
def train(
    ctx: Any,
    layers: int = 1,
    hidden: int = 8,
    microbatches: int = 2,
    gated: bool = False,
    clip: bool = False,
    fault: str = "",
) -> None:
    """Train one step."""
    faults = set(fault.split("+")) if ctx.world_size > 1 else set()
    recompute = bool(ctx.point.get("recompute", False))
    group = ctx.group("tp")
    model = Model(layers, hidden, gated, recompute, group, "striped-gate" in faults)
    model.to(ctx.device, ctx.dtype)
    annotations = _annotations(hidden, gated)
    ctx.initialize(model, annotations=annotations)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ctx.watch(model, optimizer, annotations=annotations)
    with ctx.step():
        for index in ctx.microbatches(microbatches):
            with ctx.microbatch(index):
                x, y = (each.to(ctx.device, ctx.dtype) for each in _batch(index))
                error = model(x) - y
                error = error if error.dtype == torch.float64 else error.float()
                loss = error.square().sum() / (microbatches * BATCH * WIDTH)
                ctx.loss(loss)
                loss.backward()
        for name, parameter in model.named_parameters():
            if "blocks." in name and recompute and "unreduced" in faults:  # fault: unreduced
                continue
            dist.all_reduce(parameter.grad, group=ctx.group("dp"))
        if clip:
            _clip(ctx, model, "counted-twice" in faults)
        optimizer.step()
        optimizer.zero_grad()
