"""Data parallelism by torch's wrappers, compiled layers, and weight norm."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.parametrizations import weight_norm

from pytest_trainsafe import Context

BATCH, WIDTH = 4, 16


class Model(nn.Module):
    def __init__(self, normed: bool, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.norm = nn.LayerNorm(2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)
        if normed:
            weight_norm(self.up)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm(self.up(x))
        if self.fault == "inside_region":
            inner = torch.cat(
                [inner[..., :-4], inner[..., -4:].detach()], -1
            )  # fault: inside_region
        return self.down(torch.tanh(inner))


def narrow_hook(state, bucket):  # type: ignore[no-untyped-def]  # torch refuses annotations that are text
    """Communicates in bfloat16, and forgets to average."""
    sent = bucket.buffer().to(torch.bfloat16)
    future = dist.all_reduce(sent, group=state, async_op=True).get_future()
    return future.then(lambda done: done.value()[0].to(bucket.buffer().dtype))


def batch(step: int, index: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + index)
    values = torch.randn(2, BATCH, WIDTH, generator=generator, dtype=torch.float32)
    return values[0], values[1]


def spread(name: str, _shape: object) -> tuple[float, float]:
    """The mean and the standard deviation of a parameter's first values; weights of norms lie around one."""
    return (1.0 if "norm" in name and name.endswith("weight") else 0.0), 0.3


def train(
    ctx: Context,
    fault: str = "",
    ddp: bool = False,
    normed: bool = False,
    compile: bool = False,
    steps: int = 2,
) -> None:
    """Steps of four micro-batches; with `ddp`, each rank averages its own and DDP averages over ranks."""
    fault = fault if ctx.world_size > 1 else ""
    total = 4
    model = Model(normed, fault).to(ctx.device, ctx.dtype)
    ctx.initialize(model, std=spread)
    if compile:
        model.compile(backend="aot_eager")
    group, size = ctx.group("dp"), ctx.point.size("dp")
    if fault == "ignored":
        ignored = ["norm.bias"]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
            model, ignored
        )  # fault: ignored
    wrapper: Any = DistributedDataParallel(model, process_group=group) if ddp else model
    if fault == "hook":
        wrapper.register_comm_hook(group, narrow_hook)  # fault: hook
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ctx.watch(wrapper, optimizer)
    for step in range(steps):
        with ctx.step():
            numbers = list(ctx.microbatches(total))
            for place, index in enumerate(numbers):
                with ctx.microbatch(index):
                    inputs, targets = (each.to(ctx.dtype) for each in batch(step, index))
                    if ddp:
                        wrapper.require_backward_grad_sync = place == len(numbers) - 1
                        if fault == "never_synced" and step == steps - 1:
                            wrapper.require_backward_grad_sync = False  # fault: never_synced
                    output = (model if fault == "bypassed" else wrapper)(inputs)  # fault: bypassed
                    loss = (output - targets).square().mean() / total
                    ctx.loss(loss)
                    (loss * size if ddp else loss).backward()
            if not ddp:
                for parameter in model.parameters():
                    dist.all_reduce(parameter.grad, group=group)
            if fault == "magnitude":
                model.up.parametrizations.weight.original0.grad.mul_(1.01)  # fault: magnitude
            optimizer.step()
            optimizer.zero_grad()
