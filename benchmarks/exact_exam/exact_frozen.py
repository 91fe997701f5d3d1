"""Fine-tuning under tensor parallelism: frozen layers, and low-rank adapters beside them.

Bugs, by the argument `bug`:

- "frozen_no_sum": a frozen column-parallel layer has a backward of its own, which forms the
  gradient of its input from its own rows alone (communication; Megatron-LM's
  `LinearWithFrozenWeight` at tp > 1, NVIDIA/Megatron-LM issue 670 asks why it differs; also found
  by TTrace, arXiv 2506.09280).
- "adapter_no_sum": the replicated factor A of an adapter gets the gradient of this rank's outputs
  only (communication; modelscope/mcore-bridge pull request 173).
- "adapter_scale": the adapter's scale alpha / r uses the rank of one shard of a factor that is cut
  over tp (scaling; OpenPipe/ART pull request 619 lists adapter errors of this kind).
- "adapter_after_sum": the row-parallel adapter's partial output is added after the sum of the base
  layer, so it is never summed (communication; NVIDIA-NeMo/Megatron-Bridge issue 5634).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pytest_trainsafe import divides, requires

LAYOUTS: dict[str, Any] = {
    "parameters": {
        "up.weight": {"tp_dim": 0},
        "up.lora_b": {"tp_dim": 0},
        "down.weight": {"tp_dim": 1},
        "down.lora_a": {"tp_dim": 1},
    },
    "modules": {"up": {"output": {"tp_dim": -1}}, "act": {"output": {"tp_dim": -1}}},
}


class FrozenLinear(torch.autograd.Function):
    """x Wᵀ with a weight that gets no gradient, and so need not keep x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, group: Any, summed: bool) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.group, ctx.summed = group, summed
        return x @ weight.t()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (weight,) = ctx.saved_tensors
        grad_input = grad @ weight
        if ctx.summed:
            dist.all_reduce(grad_input, group=ctx.group)
        return grad_input, None, None, None


class SumBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        total = grad.clone()
        dist.all_reduce(total, group=ctx.group)
        return total, None


class SumForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        total = x.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class Up(nn.Module):
    """A frozen column-parallel layer with an adapter: A is whole on every rank, B is cut."""

    def __init__(self, width: int, wide: int, low: int, group: Any, bug: str) -> None:
        super().__init__()
        self.group, self.bug, self.low = group, bug, low
        share = wide // dist.get_world_size(group)
        self.weight = nn.Parameter(torch.empty(share, width), requires_grad=False)
        self.lora_a = nn.Parameter(torch.empty(low, width))
        self.lora_b = nn.Parameter(torch.empty(share, low))

    def forward(self, x: Tensor) -> Tensor:
        base = FrozenLinear.apply(x, self.weight, self.group, self.bug != "frozen_no_sum")
        shrunk = x @ self.lora_a.t()
        if self.bug != "adapter_no_sum":
            shrunk = SumBackward.apply(shrunk, self.group)
        return base + (shrunk @ self.lora_b.t()) * (2.0 / self.low)


class Down(nn.Module):
    """A frozen row-parallel layer with an adapter: A is cut, B is whole on every rank."""

    def __init__(self, wide: int, width: int, low: int, group: Any, bug: str) -> None:
        super().__init__()
        self.group, self.bug, self.low = group, bug, low
        share = wide // dist.get_world_size(group)
        self.weight = nn.Parameter(torch.empty(width, share), requires_grad=False)
        self.lora_a = nn.Parameter(torch.empty(low, share))
        self.lora_b = nn.Parameter(torch.empty(width, low))

    def forward(self, x: Tensor) -> Tensor:
        base = SumForward.apply(x @ self.weight.t(), self.group)
        shrunk = x @ self.lora_a.t()
        if self.bug != "adapter_after_sum":
            shrunk = SumForward.apply(shrunk, self.group)
        scale = 2.0 / self.low
        if self.bug == "adapter_scale":
            scale = 2.0 * dist.get_world_size(self.group) / self.low
        return base + (shrunk @ self.lora_b.t()) * scale


class Regressor(nn.Module):
    def __init__(self, width: int, low: int, group: Any, bug: str) -> None:
        super().__init__()
        self.enter = nn.Linear(width, width)
        self.up = Up(width, 4 * width, low, group, bug)
        self.act = nn.SiLU()
        self.down = Down(4 * width, width, low, group, bug)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        return x + self.down(self.act(self.up(x)))


@requires(divides("width", "tp"))
def train(ctx: Any, width: int = 4, low: int = 2, bug: str = "") -> None:
    model = Regressor(width, low, ctx.group("tp"), bug).to(ctx.device, ctx.dtype)
    ctx.initialize(model, annotations=LAYOUTS)
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.01, weight_decay=0.01)
    ctx.watch(model, optimizer, annotations=LAYOUTS)
    for step in range(2):
        generator = torch.Generator().manual_seed(step)
        data = ctx.enter(torch.randn(2, 2, 3, width, generator=generator, dtype=torch.float64))
        data = data.to(ctx.device, ctx.dtype)
        with ctx.step():
            for index in ctx.microbatches(2):
                with ctx.microbatch(index):
                    x, y = data[index]
                    loss = (model(x) - y).square().mean() / 2
                    ctx.loss(loss)
                    loss.backward()
            optimizer.step()
            optimizer.zero_grad()
