"""LoRA adapters on a frozen, tensor-parallel transformer.

The idea is that of LoRA (Hu et al.) as it is combined with Megatron-like layers: next to a layer that
is cut by columns, the adapter's first matrix is whole and its second one is cut by columns; next to
one that is cut by rows, the first matrix is cut by rows and the second one is whole.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_trainsafe import Context, divides, requires

VOCABULARY, LENGTH, BATCH, WIDTH, HEADS, RANK, ALPHA = 24, 6, 2, 16, 4, 4, 8.0

ANNOTATIONS = {
    "parameters": {
        "[qkv].base.weight": {"tp_dim": 0},
        "[qkv].base.bias": {"tp_dim": 0},
        "[qv].lora_b.weight": {"tp_dim": 0},
        "up.base.weight": {"tp_dim": 0},
        "up.base.bias": {"tp_dim": 0},
        "up.lora_b.weight": {"tp_dim": 0},
        "out.weight": {"tp_dim": 1},
        "down.base.weight": {"tp_dim": 1},
        "down.lora_a.weight": {"tp_dim": 1},
    },
    "modules": {
        "q": {"output": {"tp_dim": -1}},
        "q.base": {"output": {"tp_dim": -1}},
        "q.lora_b": {"output": {"tp_dim": -1}},
        "k": {"output": {"tp_dim": -1}},
        "v": {"output": {"tp_dim": -1}},
        "v.base": {"output": {"tp_dim": -1}},
        "v.lora_b": {"output": {"tp_dim": -1}},
        "up": {"output": {"tp_dim": -1}},
        "up.base": {"output": {"tp_dim": -1}},
        "up.lora_b": {"output": {"tp_dim": -1}},
        "activation": {"output": {"tp_dim": -1}},
        "down.lora_a": {"output": {"tp_partial": True}},
    },
}
ANNOTATIONS["parameters"]["k.weight"] = {"tp_dim": 0}
ANNOTATIONS["parameters"]["k.bias"] = {"tp_dim": 0}


class _Copy(torch.autograd.Function):
    """Hands its input on; sums the ranks' gradients of it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        grad = grad.clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class _Sum(torch.autograd.Function):
    """Sums the ranks' terms; hands the gradient on."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class ColumnLinear(nn.Module):
    """A linear layer that is cut over its outputs."""

    def __init__(self, inputs: int, outputs: int, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.group = group
        share = outputs // dist.get_world_size(group)
        self.weight = nn.Parameter(torch.empty(share, inputs))
        self.bias = nn.Parameter(torch.empty(share))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(_Copy.apply(x, self.group), self.weight, self.bias)


class RowLinear(nn.Module):
    """A linear layer that is cut over its inputs."""

    def __init__(self, inputs: int, outputs: int, group: dist.ProcessGroup, fault: str) -> None:
        super().__init__()
        self.group, self.fault = group, fault
        share = inputs // dist.get_world_size(group)
        self.weight = nn.Parameter(torch.empty(outputs, share))
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, x: Tensor) -> Tensor:
        if self.fault == "bias-on-every-rank":
            return _Sum.apply(
                F.linear(x, self.weight, self.bias), self.group
            )  # fault: bias-on-every-rank
        return _Sum.apply(F.linear(x, self.weight), self.group) + self.bias


class LoraColumn(nn.Module):
    """A column-parallel layer and its adapter."""

    def __init__(self, inputs: int, outputs: int, group: dist.ProcessGroup, fault: str) -> None:
        super().__init__()
        self.group, self.fault = group, fault
        self.base = ColumnLinear(inputs, outputs, group)
        self.lora_a = nn.Linear(inputs, RANK, bias=False)
        self.lora_b = nn.Linear(RANK, outputs // dist.get_world_size(group), bias=False)
        self.scale = ALPHA / RANK
        if fault == "default-alpha" and dist.get_rank(group) != 0:
            self.scale = 1.0  # fault: default-alpha

    def forward(self, x: Tensor) -> Tensor:
        low = self.lora_a(x)
        if self.fault != "low-rank-not-copied":  # fault: low-rank-not-copied
            low = _Copy.apply(low, self.group)
        return self.base(x) + self.scale * self.lora_b(low)


class LoraRow(nn.Module):
    """A row-parallel layer and its adapter."""

    def __init__(self, inputs: int, outputs: int, group: dist.ProcessGroup, fault: str) -> None:
        super().__init__()
        self.group = group
        self.base = RowLinear(inputs, outputs, group, fault)
        self.lora_a = nn.Linear(inputs // dist.get_world_size(group), RANK, bias=False)
        self.lora_b = nn.Linear(RANK, outputs, bias=False)
        self.scale = ALPHA / RANK

    def forward(self, x: Tensor) -> Tensor:
        low = _Sum.apply(self.lora_a(x), self.group)
        return self.base(x) + self.scale * self.lora_b(low)


class Attention(nn.Module):
    """Causal attention with adapters on queries and values; a rank has some of the heads."""

    def __init__(self, width: int, group: dist.ProcessGroup, fault: str) -> None:
        super().__init__()
        self.q = LoraColumn(width, width, group, fault)
        self.k = ColumnLinear(width, width, group)
        self.v = LoraColumn(width, width, group, fault)
        self.out = RowLinear(width, width, group, fault)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for part in (self.q(x), self.k(x), self.v(x))
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and an MLP, each with its norm before it."""

    def __init__(self, width: int, group: dist.ProcessGroup, fault: str) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, group, fault)
        self.norm2 = nn.LayerNorm(width)
        self.up = LoraColumn(width, 2 * width, group, fault)
        self.activation = nn.GELU()
        self.down = LoraRow(2 * width, width, group, fault)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(self.activation(self.up(self.norm2(x))))


class Model(nn.Module):
    """Tokens to logits."""

    def __init__(self, layers: int, group: dist.ProcessGroup, fault: str) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block(WIDTH, group, fault) for _ in range(layers))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def batch(ctx: Context, step: int, index: int) -> tuple[Tensor, Tensor]:
    """The tokens and targets of a micro-batch, by its number in the whole step."""
    generator = torch.Generator().manual_seed(1000 * step + index)
    text = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=generator).to(ctx.device)
    return text[:, :-1], text[:, 1:]


@requires(divides("microbatches", "dp"))
def train(ctx: Context, fault: str = "", microbatches: int = 2, steps: int = 2) -> None:
    """Train the adapters with AdamW; all else is frozen."""
    model = Model(2, ctx.group("tp"), fault if ctx.world_size > 1 else "")
    model.to(ctx.device, ctx.dtype)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name)
    ctx.initialize(model, annotations=ANNOTATIONS)
    adapters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(adapters, lr=5e-3)
    ctx.watch(model, optimizer, annotations=ANNOTATIONS)
    for step in range(steps):
        with ctx.step():
            for number in ctx.microbatches(microbatches):
                with ctx.microbatch(number):
                    inputs, targets = batch(ctx, step, number)
                    logits = model(inputs)
                    wide = torch.promote_types(logits.dtype, torch.float32)
                    loss = F.cross_entropy(logits.flatten(0, 1).to(wide), targets.flatten())
                    loss = loss / microbatches
                    ctx.loss(loss)
                    loss.backward()
            for parameter in adapters:
                dist.all_reduce(parameter.grad, group=ctx.group("dp"))
            optimizer.step()
            optimizer.zero_grad()
