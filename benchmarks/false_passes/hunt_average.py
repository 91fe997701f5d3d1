"""Averages of weights beside the model: nobody watches them, and they are what is evaluated and published.

Polyak averaging, torch.optim.swa_utils, and the mean teacher (Tarvainen and Valpola, 2017).
"""

from __future__ import annotations

import copy

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from pytest_trainsafe import Context

BATCH, WIDTH = 4, 16


class Model(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.down = nn.Linear(hidden, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.tanh(self.norm(self.up(x))))


class Average:
    """An average of a model's weights: a copy of the model, torch's own class, or tensors in a dict."""

    def __init__(self, model: nn.Module, kind: str, decay: float, fault: str) -> None:
        self.kind, self.decay, self.fault = kind, decay, fault
        self.model = copy.deepcopy(model).requires_grad_(False)
        self.tensors = {name: value.detach().clone() for name, value in model.named_parameters()}
        self.swa = AveragedModel(model, avg_fn=self.mean)

    def mean(self, average: Tensor, value: Tensor, *_: object) -> Tensor:
        return average + (value - average) * (1 - self.decay)

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        if self.kind == "swa":
            self.swa.update_parameters(model)
            return
        into = dict(self.model.named_parameters()) if self.kind == "copy" else self.tensors
        for name, value in model.named_parameters():
            if self.fault == "no_bias" and name.endswith("bias"):
                continue  # fault: no_bias
            into[name].copy_(self.mean(into[name], value))


def batch(step: int, index: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + index)
    values = torch.randn(2, BATCH, WIDTH, generator=generator, dtype=torch.float32)
    return values[0], values[1]


def spread(name: str, _shape: object) -> tuple[float, float]:
    """The mean and the standard deviation of a parameter's first values; weights of norms lie around one."""
    return (1.0 if "norm" in name and name.endswith("weight") else 0.0), 0.2


def train(
    ctx: Context,
    fault: str = "",
    kind: str = "copy",
    teacher: bool = False,
    steps: int = 2,
    hidden: int = 32,
) -> None:
    """Steps of two micro-batches; with `teacher` the average's outputs are targets (`kind` is then "copy")."""
    fault = fault if ctx.world_size > 1 else ""
    model = Model(hidden).to(ctx.device, ctx.dtype)
    ctx.initialize(model, std=spread)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    decay = 0.99
    if fault == "decay":
        decay = 0.9  # fault: decay
    average = Average(model, kind, decay, fault)
    ctx.watch(model, optimizer)
    total = 2
    for step in range(steps):
        with ctx.step():
            for index in ctx.microbatches(total):
                with ctx.microbatch(index):
                    inputs, targets = (each.to(ctx.dtype) for each in batch(step, index))
                    if teacher:
                        with torch.no_grad():
                            targets = targets + average.model(inputs)
                    loss = (model(inputs) - targets).square().mean() / total
                    ctx.loss(loss)
                    loss.backward()
                    if fault == "each_microbatch":
                        average.update(model)  # fault: each_microbatch
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, group=ctx.group("dp"))
            if fault == "before_step":
                average.update(model)  # fault: before_step
            optimizer.step()
            optimizer.zero_grad()
            if fault == "rank1" and ctx.coordinates["dp"] == 1:
                continue  # fault: rank1
            if fault != "before_step":
                average.update(model)
