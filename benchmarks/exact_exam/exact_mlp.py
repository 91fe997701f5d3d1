"""A residual MLP under tensor and data parallelism.

Bugs, by the argument `bug`:

- "row_unreduced": the last block's second projection returns a partial sum (communication; TTrace,
  arXiv 2506.09280, finds a missing all-reduce of this kind in Megatron-LM).
- "column_grad": the gradient of the first projection's input is not summed over tp
  (communication; NovaSky-AI/SkyRL pull request 1886 reports a head trained on unreduced gradients).
- "row_bias": each tp rank adds the bias before the sum (doubled communication; awslabs/slapo
  issue 10, PaddlePaddle pull request 35186).
- "wrong_group": weight gradients are summed over tp instead of dp (a collective on the wrong group;
  TrainVerify, arXiv 2506.15961, class "communication").
- "reduced_twice": gradients are summed over dp after every micro-batch, so that the sum of an
  earlier one is summed again (doubled communication; huggingface/picotron pull request 5).
- "norm_in_both": the gradients of norms are summed over tp although every rank has the whole ones
  (doubled communication, the inverse of NVIDIA/Megatron-LM issue 443).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_trainsafe import divides, requires

VOCABULARY, LENGTH, BATCH = 11, 4, 2

LAYOUTS: dict[str, Any] = {
    "parameters": {
        "rise.weight": {"tp_dim": 0},
        "rise.bias": {"tp_dim": 0},
        "fall.weight": {"tp_dim": 1},
    },
    "modules": {"rise": {"output": {"tp_dim": -1}}, "gelu": {"output": {"tp_dim": -1}}},
}


class _Enter(torch.autograd.Function):
    """The identity, whose backward sums over a group."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        summed = grad.contiguous().clone()
        dist.all_reduce(summed, group=ctx.group)
        return summed, None


class _Leave(torch.autograd.Function):
    """The sum over a group, whose backward is the identity."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        summed = x.clone()
        dist.all_reduce(summed, group=group)
        return summed

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class Rise(nn.Module):
    """A projection whose outputs are cut over tp."""

    def __init__(self, width: int, wide: int, group: Any, summed: bool) -> None:
        super().__init__()
        self.group, self.summed = group, summed
        self.weight = nn.Parameter(torch.empty(wide // dist.get_world_size(group), width))
        self.bias = nn.Parameter(torch.empty(wide // dist.get_world_size(group)))

    def forward(self, x: Tensor) -> Tensor:
        if self.summed:
            x = _Enter.apply(x, self.group)
        return F.linear(x, self.weight, self.bias)


class Fall(nn.Module):
    """A projection whose inputs are cut over tp."""

    def __init__(self, wide: int, width: int, group: Any, bug: str) -> None:
        super().__init__()
        self.group, self.bug = group, bug
        self.weight = nn.Parameter(torch.empty(width, wide // dist.get_world_size(group)))
        self.bias = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        if self.bug == "row_bias":
            return _Leave.apply(F.linear(x, self.weight, self.bias), self.group)
        y = F.linear(x, self.weight)
        if self.bug != "row_unreduced":
            y = _Leave.apply(y, self.group)
        return y + self.bias


class Block(nn.Module):
    def __init__(self, width: int, group: Any, bug: str) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.rise = Rise(width, 2 * width, group, bug != "column_grad")
        self.gelu = nn.GELU()
        self.fall = Fall(2 * width, width, group, bug)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.fall(self.gelu(self.rise(self.norm(x))))


class Net(nn.Module):
    def __init__(self, width: int, group: Any, bug: str) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList([Block(width, group, ""), Block(width, group, bug)])
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def _data(step: int, index: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 * step + index)
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


@requires(divides("width", "tp"), divides("count", "dp"))
def train(ctx: Any, width: int = 4, count: int = 4, steps: int = 2, bug: str = "") -> None:
    model = Net(width, ctx.group("tp"), bug).to(ctx.device, ctx.dtype)
    ctx.initialize(model, annotations=LAYOUTS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    ctx.watch(model, optimizer, annotations=LAYOUTS)
    over = ctx.group("tp" if bug == "wrong_group" else "dp")
    for step in range(steps):
        with ctx.step():
            for index in ctx.microbatches(count):
                with ctx.microbatch(index):
                    inputs, targets = _data(step, index)
                    loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten()) / count
                    ctx.loss(loss)
                    loss.backward()
                if bug == "reduced_twice":
                    for parameter in model.parameters():
                        dist.all_reduce(parameter.grad, group=over)
            for name, parameter in model.named_parameters():
                if bug != "reduced_twice":
                    dist.all_reduce(parameter.grad, group=over)
                if bug == "norm_in_both" and "norm" in name:
                    dist.all_reduce(parameter.grad, group=ctx.group("tp"))
            optimizer.step()
            optimizer.zero_grad()
