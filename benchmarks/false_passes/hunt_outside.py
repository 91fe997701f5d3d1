"""Data-parallel programs that train something which `ctx.watch` is not given, or keep state that is no tensor.

Each kind is a familiar pattern: adversarial training (Goodfellow et al., 2014), weights of losses that are learned
(Kendall et al., 2018), queues of keys (MoCo: He et al., 2020), a moving baseline (REINFORCE), adapters that are added
to a finished model (LoRA: Hu et al., 2022), a step size that adapts itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import linear

from pytest_trainsafe import Context, consistent_tensor

BATCH, WIDTH, TOTAL = 4, 16, 4


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.head = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.up(x)))


class Adapted(nn.Module):
    """A layer with a low-rank addition."""

    def __init__(self, layer: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.layer = layer
        self.down = nn.Parameter(values("adapter.down", rank, layer.in_features, like=layer.weight))
        self.out = nn.Parameter(values("adapter.out", layer.out_features, rank, like=layer.weight))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + linear(linear(x, self.down), self.out)


class SelfTuning(torch.optim.Optimizer):
    """Gradient descent whose step grows while the gradient keeps its direction; the size is a Python number."""

    def __init__(self, parameters: Any, fault: str) -> None:
        super().__init__(parameters, {"lr": 0.05})
        self.fault, self.size = fault, 1.0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        agreement = 0.0
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            old = state.setdefault("old", parameter.grad.clone())
            agreement += float((old * parameter.grad).sum())
            parameter.sub_(parameter.grad, alpha=0.05 * self.size)
            old.copy_(parameter.grad)
        grow = 1.1
        if self.fault == "growth":
            grow = 1.5  # fault: growth
        self.size *= grow if agreement > 0 else 0.5


class Preconditioned(torch.optim.Optimizer):
    """Two preconditioners in a list (as Shampoo keeps them), which are applied from the third step on."""

    def __init__(self, parameters: Any, fault: str) -> None:
        super().__init__(parameters, {"lr": 0.05})
        self.fault, self.count = fault, 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.count += 1
        for parameter in self.param_groups[0]["params"]:
            grad = parameter.grad if parameter.dim() > 1 else parameter.grad.unsqueeze(1)
            left, right = grad @ grad.T, grad.T @ grad
            if self.fault == "doubled_statistics":
                left = left * 2  # fault: doubled_statistics
            both = self.state[parameter].setdefault(
                "statistics", [torch.zeros_like(left), torch.zeros_like(right)]
            )
            both[0].add_(left)
            both[1].add_(right)
            direction = grad
            if self.count > 2:
                direction = grad / (1 + both[0].diagonal().sqrt().unsqueeze(1))
            parameter.sub_(direction.view_as(parameter), alpha=0.05)


def spread(name: str, _shape: object) -> tuple[float, float]:
    """The mean and the standard deviation of a parameter's first values; weights of norms lie around one."""
    return (1.0 if "norm" in name and name.endswith("weight") else 0.0), 0.3


def values(name: str, *shape: int, like: Tensor) -> Tensor:
    return consistent_tensor(name, shape).to(like.dtype) * 0.25


def batch(ctx: Context, step: int, index: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + index)
    both = torch.randn(2, BATCH, WIDTH, generator=generator, dtype=torch.float32).to(ctx.dtype)
    return both[0], both[1]


def reduce(ctx: Context, parameters: Any) -> None:
    for parameter in parameters:
        dist.all_reduce(parameter.grad, group=ctx.group("dp"))


def loop(
    ctx: Context,
    steps: int,
    loss_of: Callable[[int, int], Tensor],
    finish: Callable[[int], None],
) -> None:
    """The steps: `loss_of(step, index)` is a micro-batch's share of the step's loss."""
    for step in range(steps):
        with ctx.step():
            for index in ctx.microbatches(TOTAL):
                with ctx.microbatch(index):
                    loss = loss_of(step, index)
                    ctx.loss(loss)
                    loss.backward()
            finish(step)


def gan(ctx: Context, model: Model, steps: int, fault: str) -> None:
    """A second network, which judges the outputs of the model, with an optimizer of its own."""
    judge = nn.Linear(WIDTH, 1).to(ctx.dtype)
    ctx.initialize(judge, std=spread)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    other = torch.optim.SGD(judge.parameters(), lr=0.1)
    ctx.watch(model, optimizer)

    def loss_of(step: int, index: int) -> Tensor:
        inputs, real = batch(ctx, step, index)
        made = model(inputs)
        own = (judge(made.detach()) - judge(real)).mean() / TOTAL
        own.backward()
        # The model's loss leaves no gradient in the judge.
        return -linear(made, judge.weight.detach(), judge.bias.detach()).mean() / TOTAL

    def finish(_step: int) -> None:
        reduce(ctx, model.parameters())
        if fault != "judge_unreduced":  # fault: judge_unreduced
            reduce(ctx, judge.parameters())
        for each in (optimizer, other):
            each.step()
            each.zero_grad()

    loop(ctx, steps, loss_of, finish)


def loss_weights(ctx: Context, model: Model, steps: int, fault: str) -> None:
    """Two losses, weighted by parameters which are not the model's."""
    weights = nn.Parameter(torch.zeros(2, dtype=ctx.dtype))
    optimizer = torch.optim.SGD([*model.parameters(), weights], lr=0.1)
    ctx.watch(model, optimizer)

    def loss_of(step: int, index: int) -> Tensor:
        inputs, targets = batch(ctx, step, index)
        output = model(inputs)
        parts = torch.stack([(output - targets).square().mean(), output.abs().mean()])
        return (weights.neg().exp() * parts + weights).sum() / TOTAL

    def finish(_step: int) -> None:
        reduce(ctx, model.parameters())
        if fault != "weights_unreduced":  # fault: weights_unreduced
            reduce(ctx, [weights])
        optimizer.step()
        optimizer.zero_grad()

    loop(ctx, steps, loss_of, finish)


def functional(ctx: Context, model: Model, steps: int, fault: str) -> None:
    """The model's own parameters stay as they are: functional_call is given tensors of a dict, which are trained."""
    tensors = {
        name: value.detach().clone().requires_grad_() for name, value in model.named_parameters()
    }
    optimizer = torch.optim.SGD(list(tensors.values()), lr=0.1)
    ctx.watch(model)

    def loss_of(step: int, index: int) -> Tensor:
        inputs, targets = batch(ctx, step, index)
        output = torch.func.functional_call(model, tensors, (inputs,))
        return (output - targets).square().mean() / TOTAL

    def finish(_step: int) -> None:
        reduce(ctx, tensors.values())
        if fault == "functional_factor":
            tensors["head.bias"].grad.mul_(2)  # fault: functional_factor
        optimizer.step()
        optimizer.zero_grad()

    loop(ctx, steps, loss_of, finish)


def unregistered(ctx: Context, model: Model, steps: int, fault: str) -> None:
    """A gate that the model keeps in a plain list, so that it is none of its parameters."""
    gate = values("gate", 2 * WIDTH, like=model.up.weight).requires_grad_()
    model.gates = [gate]  # type: ignore[assignment]
    optimizer = torch.optim.SGD([*model.parameters(), gate], lr=0.1)
    ctx.watch(model, optimizer)

    def loss_of(step: int, index: int) -> Tensor:
        inputs, targets = batch(ctx, step, index)
        inner = torch.tanh(model.up(inputs)) * (1 + gate)
        return (model.head(inner) - targets).square().mean() / TOTAL

    def finish(_step: int) -> None:
        reduce(ctx, model.parameters())
        if fault != "gate_unreduced":  # fault: gate_unreduced
            reduce(ctx, [gate])
        optimizer.step()
        optimizer.zero_grad()

    loop(ctx, steps, loss_of, finish)


def backbone(ctx: Context, model: Model, steps: int, fault: str) -> None:
    """Only the first layer is watched, with an optimizer of its own; the head has another optimizer."""
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (model.up, model.head)]
    ctx.watch(model.up, optimizers[0])

    def loss_of(step: int, index: int) -> Tensor:
        inputs, targets = batch(ctx, step, index)
        return (model(inputs) - targets).square().mean() / TOTAL

    def finish(_step: int) -> None:
        reduce(ctx, model.up.parameters())
        if fault != "head_unreduced":  # fault: head_unreduced
            reduce(ctx, model.head.parameters())
        for each in optimizers:
            each.step()
            each.zero_grad()

    loop(ctx, steps, loss_of, finish)


def second_optimizer(ctx: Context, model: Model, steps: int, fault: str) -> None:
    """The whole model is watched, but only one of its two optimizers."""
    optimizer = torch.optim.SGD(model.up.parameters(), lr=0.1)
    rate = 0.01
    if fault == "second_rate":
        rate = 0.02  # fault: second_rate
    other = torch.optim.AdamW(model.head.parameters(), lr=rate)
    ctx.watch(model, optimizer)

    def loss_of(step: int, index: int) -> Tensor:
        inputs, targets = batch(ctx, step, index)
        return (model(inputs) - targets).square().mean() / TOTAL

    def finish(_step: int) -> None:
        reduce(ctx, model.parameters())
        for each in (optimizer, other):
            each.step()
            each.zero_grad()

    loop(ctx, steps, loss_of, finish)


def replaced(ctx: Context, model: Model, steps: int, fault: str) -> None:
    """The head is replaced after the model is watched, as for fine-tuning."""
    ctx.watch(model)
    head = nn.Linear(2 * WIDTH, WIDTH).to(ctx.dtype)
    ctx.initialize(head, std=spread)
    model.head = head
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss_of(step: int, index: int) -> Tensor:
        inputs, targets = batch(ctx, step, index)
        return (model(inputs) - targets).square().mean() / TOTAL

    def finish(_step: int) -> None:
        reduce(ctx, model.parameters())
        if fault == "new_head_factor":
            head.weight.grad.mul_(2)  # fault: new_head_factor
        optimizer.step()
        optimizer.zero_grad()

    loop(ctx, steps, loss_of, finish)


def adapter(ctx: Context, model: Model, steps: int, fault: str) -> None:
    """Everything is frozen but an adapter, which is added after the model is watched."""
    ctx.watch(model)
    model.requires_grad_(False)
    model.head = Adapted(model.head)  # type: ignore[assignment]
    trained = [model.head.down, model.head.out]
    optimizer = torch.optim.SGD(trained, lr=0.1)

    def loss_of(step: int, index: int) -> Tensor:
        inputs, targets = batch(ctx, step, index)
        return (model(inputs) - targets).square().mean() / TOTAL

    def finish(_step: int) -> None:
        reduce(
            ctx, trained[:1] if fault == "adapter_unreduced" else trained
        )  # fault: adapter_unreduced
        optimizer.step()
        optimizer.zero_grad()

    loop(ctx, steps, loss_of, finish)


def queue(ctx: Context, model: Model, steps: int, fault: str) -> None:
    """Outputs of earlier steps, of all ranks, are the negatives of the next."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ctx.watch(model, optimizer)
    kept: list[Tensor] = [values("queue", TOTAL * BATCH, WIDTH, like=model.up.weight)]
    made: list[Tensor] = []

    def loss_of(step: int, index: int) -> Tensor:
        inputs, targets = batch(ctx, step, index)
        output = model(inputs)
        made.append(output.detach())
        return (
            (output - targets).square().mean() + torch.logsumexp(output @ kept[-1].T, 1).mean()
        ) / TOTAL

    def finish(_step: int) -> None:
        mine = torch.cat(made)
        made.clear()
        parts = [torch.empty_like(mine) for _ in range(ctx.point.size("dp"))]
        dist.all_gather(parts, mine, group=ctx.group("dp"))
        if fault == "own_keys":
            parts = [mine] * len(parts)  # fault: own_keys
        kept.append(torch.cat(parts))
        reduce(ctx, model.parameters())
        optimizer.step()
        optimizer.zero_grad()

    loop(ctx, steps, loss_of, finish)


def baseline(ctx: Context, model: Model, steps: int, fault: str) -> None:
    """A moving mean of the loss, a Python number, is taken off the weights of the next step's examples."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ctx.watch(model, optimizer)
    state = {"mean": 0.0, "sum": 0.0}

    def loss_of(step: int, index: int) -> Tensor:
        inputs, targets = batch(ctx, step, index)
        each = (model(inputs) - targets).square().mean(-1)
        state["sum"] += float(each.detach().mean())
        return (each * (each.detach() - state["mean"])).mean() / TOTAL

    def finish(_step: int) -> None:
        total = torch.tensor(state["sum"], dtype=torch.float64)
        if fault != "local_baseline":  # fault: local_baseline
            dist.all_reduce(total, group=ctx.group("dp"))
        state.update(mean=0.5 * state["mean"] + 0.5 * float(total) / TOTAL, sum=0.0)
        reduce(ctx, model.parameters())
        optimizer.step()
        optimizer.zero_grad()

    loop(ctx, steps, loss_of, finish)


def tuning(ctx: Context, model: Model, steps: int, fault: str) -> None:
    """An optimizer with state that is no tensor."""
    train_with(ctx, model, steps, SelfTuning(list(model.parameters()), fault))


def preconditioned(ctx: Context, model: Model, steps: int, fault: str) -> None:
    """An optimizer that keeps its tensors in a list."""
    train_with(ctx, model, steps, Preconditioned(list(model.parameters()), fault))


def train_with(ctx: Context, model: Model, steps: int, optimizer: torch.optim.Optimizer) -> None:
    ctx.watch(model, optimizer)

    def loss_of(step: int, index: int) -> Tensor:
        inputs, targets = batch(ctx, step, index)
        return (model(inputs) - targets).square().mean() / TOTAL

    def finish(_step: int) -> None:
        reduce(ctx, model.parameters())
        optimizer.step()
        optimizer.zero_grad()

    loop(ctx, steps, loss_of, finish)


KINDS = {
    each.__name__: each
    for each in (
        gan,
        loss_weights,
        functional,
        unregistered,
        backbone,
        second_optimizer,
        replaced,
        adapter,
        queue,
        baseline,
        tuning,
        preconditioned,
    )
}


def train(ctx: Context, fault: str = "", kind: str = "gan", steps: int = 2) -> None:
    fault = fault if ctx.world_size > 1 else ""
    model = Model().to(ctx.device, ctx.dtype)
    ctx.initialize(model, std=spread)
    KINDS[kind](ctx, model, steps, fault)
