"""Mixed precision in a data-parallel MLP: autocast, a loss scaler, master weights, and code for one dtype only.

From PyTorch's recipes for automatic mixed precision, and from the low-precision options of training frameworks
(gradients that are communicated or added up in a narrower dtype).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pytest_trainsafe import Context

BATCH, WIDTH, TOTAL = 4, 16, 8


class Fused(nn.Module):
    """A layer with a code path of its own for bfloat16, as fused kernels are."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.weight = nn.Parameter(torch.empty(WIDTH, WIDTH))
        self.bias = nn.Parameter(torch.empty(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight
        if self.fault == "fused_rows" and x.dtype == torch.bfloat16:
            # The last rows of a block get no gradient.
            weight = torch.cat([weight[:-2], weight[-2:].detach()])  # fault: fused_rows
        if self.fault == "fused_scale" and x.dtype == torch.bfloat16:
            return x @ weight.T * 1.05 + self.bias  # fault: fused_scale
        return x @ weight.T + self.bias


class Model(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, WIDTH)
        self.fused = Fused(fault)
        self.norm = nn.LayerNorm(WIDTH)
        self.down = nn.Linear(WIDTH, WIDTH)
        self.fault = fault

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.fused(torch.tanh(self.up(x))))
        if self.fault == "cast":
            x = x.to(torch.bfloat16).to(self.down.weight.dtype)  # fault: cast
        return self.down(x)


class Master:
    """SGD with master weights in float32 (float64 in a run of float64), and gradients added up there."""

    def __init__(self, model: nn.Module, fault: str) -> None:
        self.fault, self.parameters = fault, list(model.parameters())
        wide = torch.float64 if self.parameters[0].dtype == torch.float64 else torch.float32
        self.masters = [nn.Parameter(each.detach().clone().to(wide)) for each in self.parameters]
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            parameter.main_param = master  # type: ignore[attr-defined]
            parameter.main_grad = torch.zeros_like(master.data)  # type: ignore[attr-defined]
            parameter.register_post_accumulate_grad_hook(self.add)
        self.optimizer = torch.optim.SGD(self.masters, lr=0.1, momentum=0.9)

    def add(self, parameter: Any) -> None:
        parameter.main_grad.add_(parameter.grad)
        if self.fault == "narrow_sum":
            narrow = parameter.main_grad.to(parameter.dtype)
            parameter.main_grad.copy_(narrow)  # fault: narrow_sum
        parameter.grad = None

    def step(self) -> None:
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            master.grad = parameter.main_grad  # type: ignore[attr-defined]
        self.optimizer.step()
        with torch.no_grad():
            for parameter, master in zip(self.parameters, self.masters, strict=True):
                parameter.copy_(master)
                if self.fault == "master_lost":
                    master.copy_(parameter)  # fault: master_lost

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.main_grad.zero_()  # type: ignore[attr-defined]


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
    autocast: bool = False,
    scaler: bool = False,
    master: bool = False,
    only: str = "",
    limit: float = 1e4,
    steps: int = 2,
) -> None:
    """Steps of eight micro-batches.

    With `autocast` parameters are in float32 at least, with `master` there are master weights;
    `only` names a dtype without which the program does not run, as if its kernels existed in this dtype only.
    """
    fault = fault if ctx.world_size > 1 else ""
    if only and str(ctx.dtype) != f"torch.{only}":
        raise RuntimeError(f"no kernel for {ctx.dtype}")
    dtype = torch.float32 if autocast and ctx.dtype != torch.float64 else ctx.dtype
    model = Model(fault).to(ctx.device, dtype)
    ctx.initialize(model, std=spread)
    optimizer: Any = (
        Master(model, fault)
        if master
        else torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    )
    ctx.watch(model, optimizer)
    scale = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=steps, enabled=scaler)
    for step in range(steps):
        with ctx.step():
            for index in ctx.microbatches(TOTAL):
                with ctx.microbatch(index):
                    inputs, targets = (each.to(dtype) for each in batch(step, index))
                    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                        output = model(inputs)
                        if fault == "loss_in_autocast":
                            output = output.to(torch.bfloat16)  # fault: loss_in_autocast
                    loss = (output.to(dtype) - targets).square().mean() / TOTAL
                    ctx.loss(loss)
                    (scale.scale(loss) if scaler else loss).backward()
            for name, parameter in model.named_parameters():
                grad = parameter.main_grad if master else parameter.grad
                if fault == "narrow_communication":
                    sent = grad.to(torch.bfloat16)
                    dist.all_reduce(sent, group=ctx.group("dp"))
                    grad.copy_(sent)  # fault: narrow_communication
                else:
                    dist.all_reduce(grad, group=ctx.group("dp"))
                if fault == "bias_110" and name == "down.bias":
                    grad.mul_(1.1)  # fault: bias_110
                if fault == "weight_1001" and name == "down.weight":
                    grad.mul_(1.001)  # fault: weight_1001
            if scaler:
                if fault != "clip_scaled":  # fault: clip_scaled
                    scale.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
                scale.step(optimizer)
                scale.update()
                if fault == "updated_twice":
                    scale.update(2.0**12)  # fault: updated_twice
            else:
                optimizer.step()
            optimizer.zero_grad()
