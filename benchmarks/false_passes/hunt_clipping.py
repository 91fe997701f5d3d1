"""Clipping by a global norm, with a limit that the gradients of the test never reach.

The norm of tensor parallel gradients needs a sum over tp of the shards' squares, in which replicated parameters count
once (Megatron-LM, NeMo and torchtitan have each repaired such norms).  While the limit is not reached, a wrong norm
changes nothing; the first spike of a long run is then clipped too little, or differently on each rank.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pytest_trainsafe import Context

BATCH = 4
LAYOUTS = {
    "parameters": {
        "up.weight": {"tp_dim": 0},
        "up.bias": {"tp_dim": 0},
        "down.weight": {"tp_dim": 1},
    },
    "modules": {"up": {"output": {"tp_dim": -1}}},
}
SHARDED = ("up.weight", "up.bias", "down.weight")


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        grad = grad.contiguous().clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        total = x.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class Model(nn.Module):
    """A residual MLP that is cut over tp."""

    def __init__(self, hidden: int, group: Any) -> None:
        super().__init__()
        self.group = group
        share = 4 * hidden // dist.get_world_size(group)
        self.norm = nn.LayerNorm(hidden)
        self.up = nn.Linear(hidden, share)
        self.down = nn.Linear(share, hidden)
        self.out = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        inner = torch.tanh(self.up(_Copy.apply(self.norm(x), self.group)))
        terms = nn.functional.linear(inner, self.down.weight)
        return self.out(x + _Sum.apply(terms, self.group) + self.down.bias)


def squares(parameter: nn.Parameter) -> Tensor:
    return parameter.grad.double().square().sum()


def global_norm(ctx: Context, model: nn.Module, fault: str) -> Tensor:
    """The norm of all gradients as a single device has them."""
    shards, whole = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for name, parameter in model.named_parameters():
        if name in SHARDED:
            shards += squares(parameter)
        elif fault == "counted_twice":
            shards += squares(parameter)  # fault: counted_twice
        else:
            whole += squares(parameter)
    if fault != "shard_norm":  # fault: shard_norm
        dist.all_reduce(shards, group=ctx.group("tp"))
    return (shards + whole).sqrt()


def clip(ctx: Context, model: nn.Module, norm: Tensor, limit: float, code: str) -> None:
    """Scale the gradients if their norm exceeds the limit."""
    if code == "torch":
        torch.nn.utils.clip_grads_with_norm_(model.parameters(), limit, norm)
        return
    if code == "told":
        ctx.before_clip(norm, limit)
    if norm > limit:
        for parameter in model.parameters():
            parameter.grad.mul_((limit / (norm + 1e-6)).to(parameter.grad.dtype))


def batch(step: int, index: int, hidden: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + index)
    values = torch.randn(2, BATCH, hidden, generator=generator, dtype=torch.float32)
    return values[0], values[1]


def spread(name: str, _shape: object) -> tuple[float, float]:
    """The mean and the standard deviation of a parameter's first values; weights of norms lie around one."""
    return (1.0 if "norm" in name and name.endswith("weight") else 0.0), 0.2


def train(
    ctx: Context,
    fault: str = "",
    code: str = "torch",
    limit: float = 1e4,
    hidden: int = 16,
    report: bool = False,
) -> None:
    """Two steps of four micro-batches.

    `code` clips: "torch" by torch's function, "own" by code of the program, "told" by the same after
    `ctx.before_clip`, "hook" in a hook of the optimizer, "skip" omits the step instead of scaling.
    """
    fault = fault if ctx.world_size > 1 else ""
    model = Model(hidden, ctx.group("tp")).to(ctx.device, ctx.dtype)
    ctx.initialize(model, std=spread, annotations=LAYOUTS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ctx.watch(model, optimizer, annotations=LAYOUTS)
    total = 4

    def in_hook(*_: object) -> None:
        clip(ctx, model, global_norm(ctx, model, fault), limit, "own")

    if code == "hook":
        optimizer.register_step_pre_hook(in_hook)
    for step in range(2):
        with ctx.step():
            for index in ctx.microbatches(total):
                with ctx.microbatch(index):
                    inputs, targets = (each.to(ctx.dtype) for each in batch(step, index, hidden))
                    loss = (model(inputs) - targets).square().mean() / total
                    ctx.loss(loss)
                    loss.backward()
            norm = torch.zeros((), dtype=torch.float64)
            if fault == "before_reduce":
                norm = global_norm(ctx, model, fault)  # fault: before_reduce
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, group=ctx.group("dp"))
            if fault != "before_reduce" and code != "hook":
                norm = global_norm(ctx, model, fault)
            if report:
                ctx.grad_norm(norm)
            if code == "skip":
                if norm < limit:
                    optimizer.step()
            else:
                if code != "hook":
                    clip(ctx, model, norm, limit, code)
                optimizer.step()
            optimizer.zero_grad()
