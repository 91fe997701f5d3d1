"""Data-parallel training with noise on the inputs whose source nobody seeds, so no two runs are the same.

The idea is that of the reproducibility notes of PyTorch and NumPy: `torch.manual_seed` seeds neither NumPy's
generators, nor Python's, nor a generator of the program's own.  A comparison that takes the difference between two
runs for rounding allows errors as large as the noise; what must not happen is a pass without a word.
"""

from __future__ import annotations

import os
import random
import time
import uuid

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from pytest_trainsafe import Context

BATCH, WIDTH = 4, 16


class Noise:
    """Numbers around zero, from a source that is another one in each run."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.numpy = np.random.default_rng()
        self.torch = torch.Generator()
        self.torch.seed()
        self.python = random.Random()

    def draw(self, shape: torch.Size) -> Tensor:
        count = shape.numel()
        match self.source:
            case "numpy":
                values = self.numpy.standard_normal(count)
            case "numpy_global":
                values = np.random.standard_normal(count)
            case "torch":
                values = torch.randn(count, generator=self.torch, dtype=torch.float64).numpy()
            case "random":
                values = np.array([self.python.gauss(0, 1) for _ in range(count)])
            case "random_global":
                values = np.array([random.gauss(0, 1) for _ in range(count)])
            case "urandom":
                values = np.frombuffer(os.urandom(count), np.uint8) / 128.0 - 1
            case "uuid":
                values = np.random.default_rng(uuid.uuid4().int).standard_normal(count)
            case "time":
                values = np.random.default_rng(time.time_ns()).standard_normal(count)
            case "hash":  # the order of a set of words follows from the process's hash seed
                order = list({f"word {number}" for number in range(count)})
                values = np.array([int(word.split()[1]) for word in order]) * (2.0 / count) - 1
            case "address":  # where the allocator put an object
                values = np.random.default_rng(id(object())).standard_normal(count)
            case _:
                raise ValueError(self.source)
        return torch.from_numpy(np.ascontiguousarray(values)).reshape(shape)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.norm = nn.LayerNorm(2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.tanh(self.norm(self.up(x))))


def batch(step: int, index: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + index)
    values = torch.randn(2, BATCH, WIDTH, generator=generator, dtype=torch.float32)
    return values[0].double(), values[1].double()


def spread(name: str, _shape: object) -> tuple[float, float]:
    """The mean and the standard deviation of a parameter's first values; weights of norms lie around one."""
    return (1.0 if "norm" in name and name.endswith("weight") else 0.0), 0.2


def train(
    ctx: Context, fault: str = "", source: str = "numpy", size: float = 0.01, where: str = "input"
) -> None:
    """Two steps of four micro-batches; `where` the noise is added: to the inputs or to the targets."""
    fault = fault if ctx.world_size > 1 else ""
    model = Model().to(ctx.device, ctx.dtype)
    ctx.initialize(model, std=spread)
    lr = 0.1
    if fault == "lr_105":
        lr *= 1.05  # fault: lr_105
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    ctx.watch(model, optimizer)
    noise = Noise(source)
    total = 4
    for step in range(2):
        with ctx.step():
            for index in ctx.microbatches(total):
                with ctx.microbatch(index):
                    inputs, targets = batch(step, index)
                    if where == "input":
                        inputs = inputs + size * noise.draw(inputs.shape)
                    else:
                        targets = targets + size * noise.draw(targets.shape)
                    output = model(inputs.to(ctx.dtype))
                    loss = (output - targets.to(ctx.dtype)).square().mean() / total
                    if fault == "loss_101":
                        loss = loss * 1.01  # fault: loss_101
                    ctx.loss(loss)
                    loss.backward()
            for name, parameter in model.named_parameters():
                if fault == "unreduced_bias" and name == "down.bias":
                    continue  # fault: unreduced_bias
                dist.all_reduce(parameter.grad, group=ctx.group("dp"))
                if fault == "bias_101" and name.endswith("bias"):
                    parameter.grad.mul_(1.01)  # fault: bias_101
                if fault == "weight_102" and name.endswith("weight"):
                    parameter.grad.mul_(1.02)  # fault: weight_102
            optimizer.step()
            optimizer.zero_grad()
