"""A tensor parallel model with square weights and equal values, where a wrong layout is easy to take for a right one.

Shapes do not tell a square weight from its transpose, equal shards look the same in any order, a tensor that nobody
declares counts as whole on each rank, and a declared sum explains a reduction that is missing.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

from pytest_trainsafe import Context, consistent_tensor

VOCABULARY, LENGTH, BATCH, HIDDEN = 16, 6, 2, 16
MODULES: dict[str, Any] = {
    "up": {"output": {"tp_dim": -1}},
    "activation": {"output": {"tp_dim": -1}},
}
PARAMETERS: dict[str, Any] = {
    "up.weight": {"tp_dim": 0},
    "up.bias": {"tp_dim": 0},
    "down.weight": {"tp_dim": 1},
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "full": {"parameters": PARAMETERS, "modules": MODULES},
    # The outputs of the layers are declared to belong to a rank: they are not compared.
    "local": {
        "parameters": PARAMETERS,
        "modules": {"*": {"output": {"local": ["tp"]}}},
    },
    # A sum over tp is declared for the norm's gradient; the program must make it.
    "partial": {
        "parameters": PARAMETERS
        | {"norm.weight": {"gradient_partial": ["tp"]}, "norm.bias": {"gradient_partial": ["tp"]}},
        "modules": MODULES,
    },
}


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
    """Embedding, a square mixing layer, a residual MLP cut over tp, a head that may be tied to the embedding."""

    def __init__(self, ctx: Context, inner: int, tied: bool, fault: str) -> None:
        super().__init__()
        self.group, self.rank = ctx.group("tp"), ctx.coordinates["tp"]
        self.size, self.fault, self.tied = ctx.point.size("tp"), fault, tied
        share = len(torch.arange(inner).tensor_split(self.size)[self.rank])
        self.inner = inner
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN)
        self.mix = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.norm = nn.LayerNorm(HIDDEN)
        self.up = nn.Linear(HIDDEN, share)
        self.activation = nn.Tanh()
        self.down = nn.Linear(share, HIDDEN)
        self.gain = nn.Parameter(torch.ones(inner))  # whole on each rank, which uses its own part
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        if self.fault == "transposed":
            x = x + x @ self.mix.weight  # fault: transposed
        else:
            x = x + self.mix(x)
        normed = _Copy.apply(self.norm(x), self.group)
        whole_gain = _Copy.apply(self.gain, self.group)
        parts = whole_gain.tensor_split(self.size)
        gain = (
            parts[0] if self.fault == "gain_of_rank_0" else parts[self.rank]
        )  # fault: gain_of_rank_0
        terms = linear(self.activation(self.up(normed)) * gain, self.down.weight)
        if self.fault == "bias_in_sum":
            return self.head(
                x + _Sum.apply(terms + self.down.bias, self.group)
            )  # fault: bias_in_sum
        return self.head(x + _Sum.apply(terms, self.group) + self.down.bias)


class PartialModel(Model):
    """The gradient of the norm is left as terms of a sum over tp, for the program to add up."""

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        x = x + self.mix(x)
        # The residual stream needs the whole gradient, the norm's parameters get this rank's term.
        normalised = nn.functional.layer_norm(_Copy.apply(x, self.group), (HIDDEN,))
        normed = normalised * self.norm.weight + self.norm.bias
        gain = _Copy.apply(self.gain, self.group).tensor_split(self.size)[self.rank]
        terms = linear(self.activation(self.up(normed)) * gain, self.down.weight)
        return self.head(x + _Sum.apply(terms, self.group) + self.down.bias)


def batch(step: int, index: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + index)
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def fill(model: Model, dtype: torch.dtype, equal: bool) -> None:
    """Values of the program's own: with `equal`, biases are zero, gains one, and each shard equals the others."""
    with torch.no_grad():
        model.gain.fill_(1.0)
        model.down.bias.zero_()
        if equal:
            rows = (model.inner + model.size - 1) // model.size
            half = consistent_tensor("equal up", (model.inner // 2, HIDDEN)).mul(0.25).to(dtype)
            across = consistent_tensor("equal down", (HIDDEN, model.inner // 2)).mul(0.25).to(dtype)
            repeats = 2 // model.size
            assert rows == model.inner // 2 * repeats
            model.up.weight.copy_(half.repeat(repeats, 1))
            model.down.weight.copy_(across.repeat(1, repeats))


def spread(name: str, _shape: object) -> tuple[float, float]:
    """The mean and the standard deviation of a parameter's first values; weights of norms lie around one."""
    return (1.0 if "norm" in name and name.endswith("weight") else 0.0), 0.3


def train(
    ctx: Context,
    fault: str = "",
    layouts: str = "full",
    inner: int = 32,
    tied: bool = False,
    equal: bool = False,
    attributes: bool = False,
    steps: int = 2,
) -> None:
    """Steps of two micro-batches; `attributes` declares layouts by attributes of parameters instead."""
    fault = fault if ctx.world_size > 1 else ""
    kind = PartialModel if layouts == "partial" else Model
    model = kind(ctx, inner, tied, fault).to(ctx.device, ctx.dtype)
    declared = LAYOUTS[layouts]
    if attributes:
        for name, entry in PARAMETERS.items():
            parameter: Any = model.get_parameter(name)
            parameter.tensor_model_parallel, parameter.partition_dim = True, entry["tp_dim"]
        declared = {"modules": declared["modules"]}
    ctx.initialize(model, std=spread, annotations=declared)
    fill(model, ctx.dtype, equal)
    if fault == "untied":
        model.head.weight = nn.Parameter(model.embedding.weight.detach().clone())  # fault: untied
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ctx.watch(model, optimizer, annotations=declared)
    for step in range(steps):
        with ctx.step():
            for index in ctx.microbatches(2):
                with ctx.microbatch(index):
                    inputs, targets = batch(step, index)
                    loss = cross_entropy(model(inputs).flatten(0, 1), targets.flatten()) / 2
                    ctx.loss(loss)
                    loss.backward()
            if layouts == "partial" and fault != "norm_not_summed":  # fault: norm_not_summed
                for parameter in model.norm.parameters():
                    dist.all_reduce(parameter.grad, group=ctx.group("tp"))
            if fault == "exchanged" and ctx.world_size > 1:
                received = [torch.empty_like(model.up.weight) for _ in range(model.size)]
                dist.all_gather(received, model.up.weight.grad.contiguous(), group=model.group)
                model.up.weight.grad.copy_(received[1 - model.rank])  # fault: exchanged
            if fault == "last_column" and model.rank == 0:
                model.down.weight.grad[:, -1] = 0  # fault: last_column
            if fault == "averaged_shards":
                dist.all_reduce(model.up.bias.grad, group=model.group)  # fault: averaged_shards
                model.up.bias.grad /= model.size
            optimizer.step()
            optimizer.zero_grad()
            if fault == "rank1_norm" and model.rank == 1:
                with torch.no_grad():
                    model.norm.weight.mul_(1.01)  # fault: rank1_norm
