"""A stack of blocks over dp and tp, in which one of several faults can be planted.

Each fault is in the middle of the stack and changes everything that is computed after it.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

HIDDEN, WIDE = 8, 16

#: The fault to find for each planted bug, as (phase, target).
FAULTS = {
    "forward": ("forward", "blocks.1.up"),
    "activation": ("forward", "blocks.1.relu"),
    "between": ("forward", "blocks.1"),
    "before": ("forward", "blocks.1"),
    "data": ("data", "<program>"),
    "backward": ("backward", "blocks.1.up"),
    "between backward": ("backward", "blocks.1"),
    "differentiated": ("backward", "<program>"),
    "reported": ("loss", "<program>"),
    "weight": ("weights", "blocks.1.up.weight"),
    "unreduced": ("reduction", "blocks.1.down.bias"),
    "norm": ("norm", "<program>"),
    "step": ("optimizer", "blocks.1.down.bias"),
}


class Scale(torch.autograd.Function):
    """Returns its input; multiplies the gradient by a factor."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad * ctx.factor, None


class Sum(torch.autograd.Function):
    """Sums over ranks in the forward (leaving a parallel region) or the backward (entering it)."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: Any, backward: bool) -> Tensor:
        ctx.group, ctx.backward = group, backward
        result = tensor.clone()
        if not backward:
            dist.all_reduce(result, group=group)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        result = grad.clone()
        if ctx.backward:
            dist.all_reduce(result, group=ctx.group)
        return result, None, None


class Up(nn.Module):
    """[batch, HIDDEN] to [batch, WIDE / tp]."""

    def __init__(self, tp: int, group: Any, bug: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(WIDE // tp, HIDDEN))
        self.weight.tensor_model_parallel = True  # type: ignore[attr-defined]
        self.weight.partition_dim = 0  # type: ignore[attr-defined]
        self.group, self.bug = group, bug

    def forward(self, hidden: Tensor) -> Tensor:
        if self.bug != "backward":
            hidden = Sum.apply(hidden, self.group, True)
        weight = Scale.apply(self.weight, 2.0) if self.bug == "weight" else self.weight
        wide = hidden @ weight.T
        return wide * 1.01 if self.bug == "forward" else wide


class Relu(nn.Module):
    """About half of its outputs are zeros, so they are not rewritten."""

    def __init__(self, bug: str) -> None:
        super().__init__()
        self.bug = bug

    def forward(self, wide: Tensor) -> Tensor:
        return wide.relu() * (1.01 if self.bug == "activation" else 1.0)


class Down(nn.Module):
    """[batch, WIDE / tp] to [batch, HIDDEN]."""

    def __init__(self, tp: int, group: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(HIDDEN, WIDE // tp))
        self.weight.tensor_model_parallel = True  # type: ignore[attr-defined]
        self.weight.partition_dim = 1  # type: ignore[attr-defined]
        self.bias = nn.Parameter(torch.empty(HIDDEN))
        self.group = group

    def forward(self, wide: Tensor) -> Tensor:
        return Sum.apply(wide @ self.weight.T, self.group, False) + self.bias


class Block(nn.Module):
    """A residual block that centers its input itself, without a module."""

    def __init__(self, tp: int, group: Any, bug: str) -> None:
        super().__init__()
        self.up = Up(tp, group, bug)
        self.relu = Relu(bug)
        self.down = Down(tp, group)
        self.bug = bug

    def forward(self, hidden: Tensor) -> Tensor:
        normal = hidden - hidden.mean(dim=-1, keepdim=True)
        if self.bug == "before":
            normal = normal.roll(1, dims=0)
        if self.bug == "between backward":
            normal = Scale.apply(normal, 2.0)
        narrowed = self.down(self.relu(self.up(normal)))
        return hidden + (narrowed * 1.01 if self.bug == "between" else narrowed)


class Stack(nn.Module):
    def __init__(self, tp: int, group: Any, bug: str, recompute: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(tp, group, bug if i == 1 else "") for i in range(3))
        self.head = nn.Linear(HIDDEN, HIDDEN)
        self.recompute = recompute

    def forward(self, hidden: Tensor) -> Tensor:
        for block in self.blocks:
            if self.recompute:
                hidden = checkpoint(block, hidden, use_reentrant=False)
            else:
                hidden = block(hidden)
        return self.head(hidden)


ANNOTATIONS = {"modules": {"up": {"output": {"tp_dim": -1}}, "relu": {"output": {"tp_dim": -1}}}}


#: Gradients are declared as means over dp, and no layout of a module is declared.
MEANS_ALONE = {"gradients": {"mean": ["dp"]}}


def train(
    ctx: Any, bug: str = "", recompute: bool = False, last: int = 4, means: bool = False
) -> None:
    """Trains one step; the last micro-batch has `last` rows, the other one has four.

    `bug` is one bug or several, joined by "+".  With `means`, each dp rank averages over its own
    micro-batches, the reduction over dp averages too, and the layouts of modules are missing.
    """
    bugs = bug.split("+") if ctx.world_size > 1 else [""]
    model = Stack(ctx.point.size("tp"), ctx.group("tp"), bugs[0], recompute)
    model.to(ctx.device, ctx.dtype)
    ctx.initialize(model)
    if "start" in bugs:
        model.get_parameter("blocks.1.down.bias").data.add_(1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    ctx.watch(model, optimizer, annotations=MEANS_ALONE if means else ANNOTATIONS)
    ranks = ctx.point.size("dp") if means else 1
    with ctx.step():
        for index in ctx.microbatches(2):
            data = torch.Generator().manual_seed(index)
            rows = last if index == 1 else 4
            batch = torch.randn(rows, HIDDEN, generator=data, dtype=torch.float64).to(ctx.dtype)
            with ctx.microbatch(index):
                loss = model(batch.roll(1, 0) if "data" in bugs else batch).square().mean()
                if "divisor" in bugs:
                    loss = loss * (rows / 4)  # divided by the rows of a full micro-batch
                ctx.loss(loss * 2 if "reported" in bugs else loss)
                (loss * (2 if "differentiated" in bugs else ranks)).backward()
        squares = torch.zeros((), dtype=ctx.dtype)
        for name, parameter in model.named_parameters():
            if "unreduced" not in bugs or name != "blocks.1.down.bias":
                dist.all_reduce(parameter.grad, group=ctx.group("dp"))
            assert parameter.grad is not None
            parameter.grad /= ranks
            whole = parameter.grad.square().sum()
            if hasattr(parameter, "partition_dim"):
                dist.all_reduce(whole, group=ctx.group("tp"))
            squares += whole
        ctx.grad_norm(squares if "norm" in bugs else squares.sqrt())
        before = model.get_parameter("blocks.1.down.bias").detach().clone()
        optimizer.step()
        if "step" in bugs:
            model.get_parameter("blocks.1.down.bias").data.lerp_(before, 0.5)
