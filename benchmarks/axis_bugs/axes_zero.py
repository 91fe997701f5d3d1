"""Master weights and optimizer states that are cut over dp (ZeRO, Rajbhandari et al., 2020).

Each dp rank owns a range of every flattened parameter.  With zero=1 it keeps the optimizer state of
its range only; with zero=2 it also keeps the sum of gradients in its range only, and reduces the
gradients of each micro-batch at once.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pytest_trainsafe import divides, requires

BATCH = 3

ANNOTATIONS = {
    "parameters": {
        "up.weight": {"tp_dim": 0},
        "up.bias": {"tp_dim": 0},
        "down.weight": {"tp_dim": 1},
    },
    "modules": {
        "up": {"output": {"tp_dim": -1}},
        "activation": {"output": {"tp_dim": -1}},
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
    """A residual MLP that is cut over tp."""

    def __init__(self, hidden: int, group: Any) -> None:
        super().__init__()
        self.group = group
        inner = 2 * hidden // dist.get_world_size(group)
        self.norm = nn.LayerNorm(hidden)
        self.up = nn.Linear(hidden, inner)
        self.activation = nn.Tanh()
        self.down = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.activation(self.up(_Copy.apply(self.norm(x), self.group)))
        return x + _Sum.apply(self.down(inner), self.group)


class Model(nn.Module):
    """Some blocks."""

    def __init__(self, layers: int, hidden: int, group: Any) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(hidden, group) for _ in range(layers))
        self.final = nn.LayerNorm(hidden)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.final(x)


class ShardedOptimizer:
    """SGD with momentum on this rank's ranges of the parameters, in at least float32."""

    def __init__(self, ctx: Any, model: nn.Module, fault: str) -> None:
        self.parameters, self.group, self.fault = list(model.parameters()), ctx.group("dp"), fault
        self.zero = int(ctx.point.get("zero", 0))
        self.size = ctx.point.size("dp") if self.zero else 1
        self.narrow = ctx.dtype == torch.bfloat16
        wide = torch.float64 if ctx.dtype == torch.float64 else torch.float32
        for parameter in self.parameters:
            count = parameter.numel()
            share = -(-count // self.size)
            start = share * ctx.coordinates["dp"] if self.zero else 0
            end = min(start + share, count)
            master = parameter.detach().flatten()[start:end].to(wide, copy=True)
            parameter.main_param_range = (start, end)
            parameter.main_param = nn.Parameter(master)
            parameter.main_grad = torch.zeros_like(parameter, dtype=wide).detach()
        masters = [each.main_param for each in self.parameters]
        self.inner = torch.optim.SGD(masters, lr=0.5, momentum=0.9)

    def add(self) -> None:
        """Add the gradients of a micro-batch to those of the step."""
        for parameter in self.parameters:
            grad = parameter.grad.to(parameter.main_grad.dtype)
            if self.zero < 2:
                parameter.main_grad += grad
            else:
                dist.all_reduce(grad, group=self.group)
                start, end = parameter.main_param_range
                mine = parameter.main_grad.view(-1)[start:end]
                if self.fault == "overwritten":
                    mine.copy_(grad.flatten()[start:end])  # fault: overwritten
                else:
                    mine += grad.flatten()[start:end]
            parameter.grad = None

    def step(self) -> None:
        """Reduce the gradients that are not reduced yet, update, and share the new values."""
        for parameter in self.parameters:
            if self.zero < 2:
                dist.all_reduce(parameter.main_grad, group=self.group)
            start, end = parameter.main_param_range
            parameter.main_param.grad = parameter.main_grad.view(-1)[start:end].clone()
        early = self.fault == "early-gather" and self.zero > 0 and self.narrow
        if early:
            self._gather()  # fault: early-gather
        self.inner.step()
        if not early:
            self._gather()
        for parameter in self.parameters:
            parameter.main_grad.zero_()

    @torch.no_grad()
    def _gather(self) -> None:
        for parameter in self.parameters:
            count, flat = parameter.numel(), parameter.view(-1)
            if self.size == 1:
                flat.copy_(parameter.main_param)
                continue
            share = -(-count // self.size)
            part = torch.zeros(share, dtype=parameter.dtype, device=parameter.device)
            part[: parameter.main_param.numel()] = parameter.main_param.to(parameter.dtype)
            parts = [torch.empty_like(part) for _ in range(self.size)]
            dist.all_gather(parts, part, group=self.group)
            if self.fault == "lost-tail":
                count = count // self.size * self.size  # fault: lost-tail
            flat[:count] = torch.cat(parts)[:count]


def _batch(number: int, hidden: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(400 + number)
    x, y = torch.randn(2, BATCH, hidden, generator=generator, dtype=torch.float32)
    return x, y


def _zero_needs_dp(point: Any, _arguments: Any) -> str | None:
    if point.get("zero", 0) and point.size("dp") == 1:
        return "zero needs dp > 1"
    return None


def _whole_inner(point: Any, arguments: Any) -> str | None:
    inner = 2 * arguments.get("hidden", 8)
    if inner % point.size("tp"):
        return f"the inner size {inner} is not divisible by tp={point.size('tp')}"
    return None


def _no_empty_range(point: Any, arguments: Any) -> str | None:
    # The smallest parameters have `hidden` elements, or `2 * hidden / tp` of them.
    smallest = min(arguments.get("hidden", 8), 2 * arguments.get("hidden", 8) // point.size("tp"))
    size = point.size("dp")
    if -(-smallest // size) * (size - 1) >= smallest:
        return f"a dp rank would own no element of a parameter of {smallest}"
    return None


@requires(divides("microbatches", "dp"), _zero_needs_dp, _whole_inner, _no_empty_range)
def train(
    ctx: Any, layers: int = 1, hidden: int = 8, microbatches: int = 2, fault: str = ""
) -> None:
    """Train two steps."""
    fault = fault if ctx.world_size > 1 else ""
    model = Model(layers, hidden, ctx.group("tp")).to(ctx.device, ctx.dtype)
    ctx.initialize(model, annotations=ANNOTATIONS)
    optimizer = ShardedOptimizer(ctx, model, fault)
    ctx.watch(model, optimizer.inner, annotations=ANNOTATIONS)
    for step in range(2):
        with ctx.step():
            for index in ctx.microbatches(microbatches):
                with ctx.microbatch(index):
                    x, y = _batch(step * microbatches + index, hidden)
                    x, y = x.to(ctx.device, ctx.dtype), y.to(ctx.device, ctx.dtype)
                    error = model(x) - y
                    error = error if error.dtype == torch.float64 else error.float()
                    loss = error.square().sum() / (microbatches * BATCH * hidden)
                    ctx.loss(loss)
                    loss.backward()
                optimizer.add()
            optimizer.step()
