"""A data-parallel MLP whose faults act late: in the last step, after it, or only in what a step leaves behind.

Most are beginner's errors from PyTorch's forums (a missing zero_grad, a scheduler that steps once per batch), and
hyperparameters of optimizers that have no effect in a first step.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

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


class MainGradients:
    """Gradients are added up in buffers `main_grad`, as frameworks do that keep them in another dtype."""

    def __init__(self, model: nn.Module) -> None:
        self.parameters = list(model.parameters())
        for parameter in self.parameters:
            parameter.main_grad = torch.zeros_like(parameter)  # type: ignore[attr-defined]
            parameter.register_post_accumulate_grad_hook(self.add)

    @staticmethod
    def add(parameter: Any) -> None:
        parameter.main_grad.add_(parameter.grad)
        parameter.grad = None

    def give(self) -> None:
        for parameter in self.parameters:
            parameter.grad = parameter.main_grad.clone()

    def zero(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None
            parameter.main_grad.zero_()


def make_optimizers(model: Model, kind: str, fault: str) -> list[torch.optim.Optimizer]:
    parameters = list(model.parameters())
    match kind:
        case "sgd":
            return [torch.optim.SGD(parameters, lr=0.1)]
        case "momentum":
            momentum, dampening = 0.9, 0.0
            if fault == "momentum":
                momentum = 0.5  # fault: momentum
            if fault == "dampening":
                dampening = 0.9  # fault: dampening
            if fault == "no_momentum":
                momentum = 0.0  # fault: no_momentum
            return [torch.optim.SGD(parameters, lr=0.1, momentum=momentum, dampening=dampening)]
        case "amsgrad":
            amsgrad = fault != "no_amsgrad"  # fault: no_amsgrad
            return [torch.optim.AdamW(parameters, lr=1e-2, amsgrad=amsgrad)]
        case "two":
            return [
                torch.optim.SGD(model.up.parameters(), lr=0.1),
                torch.optim.AdamW([*model.norm.parameters(), *model.down.parameters()], lr=1e-2),
            ]
        case "groups":
            decayed = [value for name, value in model.named_parameters() if name.endswith("weight")]
            free = [value for name, value in model.named_parameters() if name.endswith("bias")]
            free_decay = 0.1 if fault == "decayed_bias" else 0.0  # fault: decayed_bias
            groups = [
                {"params": decayed, "weight_decay": 0.1},
                {"params": free, "weight_decay": free_decay},
            ]
            return [torch.optim.AdamW(groups, lr=1e-2)]
        case "adamw":
            betas = (0.9, 0.999 if fault == "beta2" else 0.95)  # fault: beta2
            eps = 1e-6 if fault == "eps" else 1e-8  # fault: eps
            return [torch.optim.AdamW(parameters, lr=1e-2, betas=betas, eps=eps)]
    raise ValueError(kind)


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
    optimizer: str = "adamw",
    steps: int = 2,
    microbatches: int = 4,
    hidden: int = 32,
    main_gradients: bool = False,
    zero_bias: bool = False,
    schedule: str = "",
    project: bool = False,
) -> None:
    """`schedule` is "", "linear" (the rate falls each step) or "late" (it falls after the last step);
    with `project`, weights are kept below a bound after each step, as WGAN does."""
    fault = fault if ctx.world_size > 1 else ""
    rank, last = ctx.coordinates["dp"], steps - 1
    model = Model(hidden).to(ctx.device, ctx.dtype)
    ctx.initialize(model, std=spread)
    if zero_bias:
        with torch.no_grad():
            model.up.bias.zero_()
            model.down.bias.zero_()
            model.norm.bias.zero_()
    if fault == "frozen_bias":
        model.down.bias.requires_grad_(False)  # fault: frozen_bias
    optimizers = make_optimizers(model, optimizer, fault)
    main = MainGradients(model) if main_gradients else None
    after = {"linear": 1, "late": steps}.get(schedule, 10**6)
    schedulers = [
        torch.optim.lr_scheduler.StepLR(each, step_size=after, gamma=0.5) for each in optimizers
    ]
    ctx.watch(model, optimizers)
    for step in range(steps):
        with ctx.step():
            for index in ctx.microbatches(microbatches):
                with ctx.microbatch(index):
                    inputs, targets = (each.to(ctx.dtype) for each in batch(step, index))
                    loss = (model(inputs) - targets).square().mean() / microbatches
                    ctx.loss(loss)
                    if fault == "last_microbatch" and index == microbatches - 1 and step == last:
                        loss = loss * 1.01  # fault: last_microbatch
                    loss.backward()
                    if fault == "schedule_per_microbatch":
                        schedulers[0].step()  # fault: schedule_per_microbatch
            for name, parameter in model.named_parameters():
                if fault == "last_step" and step == last and name == "norm.bias":
                    continue  # fault: last_step
                grad = parameter.grad if main is None else parameter.main_grad
                if grad is not None:
                    dist.all_reduce(grad, group=ctx.group("dp"))
                if fault == "adam_factor" and name == "norm.weight":
                    parameter.grad.mul_(2)  # fault: adam_factor
            if main is not None:
                main.give()
            rates = [each.param_groups[0]["lr"] for each in optimizers]
            if fault == "rank1_lr" and rank == 1 and step == last:
                optimizers[0].param_groups[0]["lr"] *= 1.1  # fault: rank1_lr
            for each in optimizers:
                each.step()
            for each, rate in zip(optimizers, rates, strict=True):
                each.param_groups[0]["lr"] = rate
            if fault == "adam_count" and step == last:
                for state in optimizers[0].state.values():
                    state["step"] += 1  # fault: adam_count
            if fault == "no_zero":
                continue  # fault: no_zero
            if main is not None:
                if fault == "no_zero_main":
                    continue  # fault: no_zero_main
                main.zero()
            for each in (
                optimizers[:1] if fault == "no_zero_second" else optimizers
            ):  # fault: no_zero_second
                each.zero_grad()
        if fault == "schedule_twice":
            schedulers[0].step()  # fault: schedule_twice
        for each in schedulers:
            if fault == "schedule_rank1" and rank == 1:
                continue  # fault: schedule_rank1
            each.step()
        if project:
            bound = 0.3
            if fault == "bound":
                bound = 0.25  # fault: bound
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.clamp_(-bound, bound)
        if fault == "rank1_after" and rank == 1 and step == last:
            with torch.no_grad():
                model.down.weight.mul_(0.99)  # fault: rank1_after
