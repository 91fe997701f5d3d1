"""A model that runs inside a transform of torch.func is recorded without its activations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vjp, vmap

from pytest_trainsafe.record.context import Context
from pytest_trainsafe.trace.run_spec import Rewrite

#: A Run in which outputs can be rewritten.
REWRITE = {"rewrite": {"activation head.output 0": Rewrite((4, 2), 0.0, 1.0)}}

X = torch.linspace(-1, 1, 12).reshape(4, 3)


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm = nn.Linear(3, 3), nn.LayerNorm(3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(torch.tanh(self.fc(x)))
        return y


def functionally(inner: nn.Module, x: Tensor) -> Tensor:
    def loss(parameters: dict[str, Tensor]) -> Tensor:
        return functional_call(inner, parameters, (x,)).square().sum()

    grads = grad(loss)(dict(inner.named_parameters()))
    return x @ grads["fc.weight"]


TRANSFORMS: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "vmap": lambda inner, x: vmap(inner)(x),
    "grad": lambda inner, x: grad(lambda y: inner(y).sum())(x),
    "per-example gradients": lambda inner, x: vmap(grad(lambda y: inner(y).square().sum()))(x),
    "vjp": lambda inner, x: vjp(inner, x)[0],
    "functional_call": functionally,
}


@pytest.mark.parametrize(
    "how", [{}, {"perturbation": 2.0**-10}, REWRITE], ids=["plain", "noise", "rewritten"]
)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_a_model_inside_a_transform_is_listed_as_not_compared(
    record: Any, transform: str, how: dict[str, Any]
) -> None:
    model = nn.ModuleDict({"inner": Inner(), "head": nn.Linear(3, 2)})

    def train(ctx: Context) -> None:
        ctx.watch(model)
        with ctx.step(), ctx.microbatch(0):
            hidden = TRANSFORMS[transform](model["inner"], X)
            loss = model["head"](hidden).square().sum()
            ctx.loss(loss)
            loss.backward()

    run = record(train, **how)

    what = "output is a tensor inside a transform of torch.func, such as vmap"
    names = ["inner.fc", "inner.norm", "inner"]
    assert run.rank.note("not_compared") == [f"{name}: {what}" for name in names]
    outputs = [path for path in run.paths("activation") if ".output" in path]
    assert outputs == ["head.output"]
    assert "inner.fc.weight" in run.paths("param")


def test_a_whole_model_inside_a_transform_is_trained_as_outside(record: Any) -> None:
    model, seen = Inner(), []

    def train(ctx: Context) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        ctx.watch(model, optimizer)
        with ctx.step():
            with ctx.microbatch(0):
                vmap(model)(X).square().sum().backward()
                gradient = model.fc.weight.grad
                assert gradient is not None
                seen.append(gradient.clone())
            optimizer.step()

    expected = torch.autograd.grad(vmap(model)(X).square().sum(), [model.fc.weight])
    run = record(train)

    assert torch.equal(seen[0], expected[0])
    assert torch.equal(run.get("main_grad", "fc.weight"), expected[0])


def test_a_parameter_whose_gradient_is_undefined_in_a_second_derivative_has_none(
    record: Any,
) -> None:
    model = nn.LayerNorm(3)

    def train(ctx: Context) -> None:
        ctx.watch(model)
        with ctx.step(), ctx.microbatch(0):
            x = X.clone().requires_grad_()
            [first] = torch.autograd.grad(model(x).sum(), x, create_graph=True)
            first.square().sum().backward()

    assert record(train).paths("param_grad") == ["weight"]
