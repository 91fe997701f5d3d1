"""Models with two autograd functions in one forward: inside it, or between its modules."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

ANNOTATIONS = {"parameters": {"up": {"tp_dim": 0}, "up_bias": {"tp_dim": 0}, "down": {"tp_dim": 1}}}


class Enter(torch.autograd.Function):
    """Returns its input, and sums the ranks' gradients of it, unless `mistake` is "enter"."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: dist.ProcessGroup, mistake: str) -> Tensor:
        ctx.group, ctx.mistake = group, mistake
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        total = grad.clone()
        if ctx.mistake != "enter":
            dist.all_reduce(total, group=ctx.group)
        return total, None, None


class Leave(torch.autograd.Function):
    """Sums the ranks' terms, and passes on their gradient, or its sum if `mistake` is "leave"."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: dist.ProcessGroup, mistake: str) -> Tensor:
        ctx.group, ctx.mistake = group, mistake
        total = tensor.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        total = grad.clone()
        if ctx.mistake == "leave":
            dist.all_reduce(total, group=ctx.group)
        return total, None, None


class Fused(nn.Module):
    def __init__(self, hidden: int, group: dist.ProcessGroup, mistake: str) -> None:
        super().__init__()
        wide = 4 * hidden // dist.get_world_size(group)
        self.up = nn.Parameter(torch.empty(wide, hidden))
        self.up_bias = nn.Parameter(torch.empty(wide))
        self.down = nn.Parameter(torch.empty(hidden, wide))
        self.given = group, mistake

    def forward(self, x: Tensor) -> Tensor:
        entered = Enter.apply(x, *self.given)
        wide = torch.tanh(nn.functional.linear(entered, self.up, self.up_bias))
        total: Tensor = Leave.apply(nn.functional.linear(wide, self.down), *self.given)
        return total


class Apart(nn.Module):
    """Applies the two functions to what two modules return, with a factor in one backward."""

    def __init__(self, mistake: str) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 8)
        self.third = nn.Linear(8, 3)
        self.mistake = mistake

    def forward(self, x: Tensor) -> Tensor:
        x = Early.apply(self.first(x), 2.0 if self.mistake == "early" else 1.0)
        x = Late.apply(self.second(x), 2.0 if self.mistake == "late" else 1.0)
        y: Tensor = self.third(x)
        return y


class Early(torch.autograd.Function):
    """Returns its input, and multiplies the gradient by a factor."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad * ctx.factor, None


class Late(torch.autograd.Function):
    """As `Early`, at lines of its own."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad * ctx.factor, None


def train(ctx: Any, mistake: str = "") -> None:
    group = ctx.group("tp")
    fused = nn.Sequential(nn.Linear(6, 8), Fused(8, group, mistake), nn.Linear(8, 3))
    fit(ctx, fused, ANNOTATIONS)


def train_apart(ctx: Any, mistake: str = "") -> None:
    ctx.group("tp")
    fit(ctx, Apart(mistake), {})


def fit(ctx: Any, model: nn.Module, annotations: dict[str, Any]) -> None:
    ctx.initialize(model.to(ctx.dtype), annotations=annotations)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ctx.watch(model, optimizer, annotations=annotations)
    with ctx.step():
        for index in ctx.microbatches(2):
            with ctx.microbatch(index):
                generator = torch.Generator().manual_seed(index)
                inputs = torch.randn(5, 6, generator=generator, dtype=torch.float64)
                loss = model(inputs.to(ctx.dtype)).square().mean() / 2
                ctx.loss(loss)
                loss.backward()
        optimizer.step()
