"""A language model of tensor parallel layers with a function with jumps behind its embedding.

Quantisation-aware training (straight-through estimators: Bengio et al., 2013; power-of-two scales as in
"Fixed-point quantization aware training" of many inference toolkits).  A parameter that all narrow dtypes can hold
often lies exactly on the edge between two codes, so the least noise moves it to the other one: whoever measures
rounding by noise may then allow errors of whole steps everywhere behind.  The candidate looks its rows up without
rounding, so it has the reference's codes, and faults in gradients must still be seen.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pytest_trainsafe import Context

VOCABULARY, LENGTH, BATCH = 32, 8, 2
LAYOUTS = {
    "parameters": {
        "embedding.weight": {"tp_dim": 0},
        "up.weight": {"tp_dim": 0},
        "up.bias": {"tp_dim": 0},
        "down.weight": {"tp_dim": 1},
    },
    "modules": {"up": {"output": {"tp_dim": -1}}, "activation": {"output": {"tp_dim": -1}}},
}
# fault: the parameter whose gradient is multiplied, and by what
SCALED = {
    "norm_1005": ("norm.weight", 1.005),
    "up_1003": ("up.weight", 1.003),
    "head_101": ("head.weight", 1.01),
    "embedding_101": ("embedding.weight", 1.01),
    "down_bias_102": ("down.bias", 1.02),
}


class _Copy(torch.autograd.Function):
    """The input on all ranks; its gradients are summed."""

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
    """The sum of all ranks' terms; each rank gets the gradient of the sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        total = x.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class VocabularyEmbedding(nn.Module):
    """Each rank holds some of the rows."""

    def __init__(self, rows: int, hidden: int, group: Any) -> None:
        super().__init__()
        self.group = group
        self.rows = rows // dist.get_world_size(group)
        self.first = self.rows * dist.get_rank(group)
        self.weight = nn.Parameter(torch.empty(self.rows, hidden))

    def forward(self, tokens: Tensor) -> Tensor:
        local = tokens - self.first
        mine = (local >= 0) & (local < self.rows)
        found = nn.functional.embedding(local.clamp(0, self.rows - 1), self.weight)
        return _Sum.apply(found * mine.unsqueeze(-1), self.group)


class Jump(nn.Module):
    """A function with jumps, with the gradient of the identity."""

    def __init__(self, kind: str, bits: int) -> None:
        super().__init__()
        self.kind, self.step = kind, 2.0**-bits

    def forward(self, x: Tensor) -> Tensor:
        return x + (self.coded(x.detach()) - x.detach())

    def coded(self, x: Tensor) -> Tensor:
        match self.kind:
            case "step":  # a grid whose step is a power of two
                return (x / self.step).round() * self.step
            case "power":  # the power of two below
                return x.sign() * 2.0 ** x.abs().clamp(min=1e-12).log2().floor()
            case "nearest_power":
                return x.sign() * 2.0 ** x.abs().clamp(min=1e-12).log2().round()
            case "floor":
                return (x / self.step).floor() * self.step
            case "int8":  # a scale from the greatest value
                scale = x.abs().amax() / 127
                return (x / scale).round() * scale
            case "sign":
                return x.sign() * x.abs().mean(-1, keepdim=True)
            case "topk":  # only the greatest half of a token's features
                least = x.abs().topk(x.shape[-1] // 2, dim=-1).values[..., -1:]
                return x * (x.abs() >= least)
            case "argmax":  # only the greatest feature
                return x * nn.functional.one_hot(x.argmax(-1), x.shape[-1]).to(x.dtype)
        raise ValueError(self.kind)


class Model(nn.Module):
    """Tokens to logits."""

    def __init__(self, hidden: int, jump: str, bits: int, group: Any, fault: str) -> None:
        super().__init__()
        self.group, self.fault = group, fault
        share = 2 * hidden // dist.get_world_size(group)
        self.embedding = VocabularyEmbedding(VOCABULARY, hidden, group)
        self.jump = Jump(jump, bits)
        self.norm = nn.LayerNorm(hidden)
        self.up = nn.Linear(hidden, share)
        self.activation = nn.GELU()
        self.down = nn.Linear(share, hidden)
        self.head = nn.Linear(hidden, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.jump(self.embedding(tokens))
        normed = self.norm(x)
        if self.fault != "partial_norm":  # fault: partial_norm
            normed = _Copy.apply(normed, self.group)
        terms = nn.functional.linear(self.activation(self.up(normed)), self.down.weight)
        return self.head(x + _Sum.apply(terms, self.group) + self.down.bias)


def batch(step: int, index: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + index)
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def spread(name: str, _shape: object) -> tuple[float, float]:
    """The mean and the standard deviation of a parameter's first values; weights of norms lie around one."""
    return (1.0 if "norm" in name and name.endswith("weight") else 0.0), 0.25


def train(
    ctx: Context, fault: str = "", jump: str = "step", bits: int = 4, hidden: int = 16
) -> None:
    """Two steps of two micro-batches with plain SGD, which applies a wrong factor as it is."""
    fault = fault if ctx.world_size > 1 else ""
    model = Model(hidden, jump, bits, ctx.group("tp"), fault).to(ctx.device, ctx.dtype)
    ctx.initialize(model, std=spread, annotations=LAYOUTS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ctx.watch(model, optimizer, annotations=LAYOUTS)
    total = 2
    for step in range(2):
        with ctx.step():
            for index in ctx.microbatches(total):
                with ctx.microbatch(index):
                    inputs, targets = batch(step, index)
                    logits = model(inputs)
                    loss = (
                        nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()) / total
                    )
                    ctx.loss(loss)
                    if fault == "loss_101":
                        loss = loss * 1.01  # fault: loss_101
                    loss.backward()
            if fault in SCALED:
                name, factor = SCALED[fault]
                # fault: norm_1005, up_1003, head_101, embedding_101, down_bias_102
                model.get_parameter(name).grad.mul_(factor)  # fault: see the line above
            optimizer.step()
            optimizer.zero_grad()
