"""A gradient that a custom backward takes itself is counted once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pytest_trainsafe.record.context import Context

X = torch.linspace(-1, 1, 12).reshape(4, 3)


class Checkpoint(torch.autograd.Function):
    """Runs a module again in the backward, as checkpoint functions do.

    `way` is how it takes the gradients of the parameters: "grad" returns those of
    `torch.autograd.grad`, "backward" lets `torch.autograd.backward` add them to `.grad`, and "own"
    adds those of `torch.autograd.grad` to `.grad` itself.
    """

    @staticmethod
    def forward(ctx: Any, module: nn.Module, way: str, x: Tensor, *_: Tensor) -> Tensor:
        ctx.module, ctx.way = module, way
        ctx.save_for_backward(x)
        with torch.no_grad():
            return module(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x = ctx.saved_tensors[0].detach().requires_grad_()
        parameters = list(ctx.module.parameters())
        with torch.enable_grad():
            out = ctx.module(x)
        none = [None] * len(parameters)
        if ctx.way == "backward":
            torch.autograd.backward(out, grad)
            return None, None, x.grad, *none
        own, *grads = torch.autograd.grad(out, [x, *parameters], grad)
        if ctx.way == "grad":
            return None, None, own, *grads
        for parameter, each in zip(parameters, grads, strict=True):
            parameter.grad = each if parameter.grad is None else parameter.grad + each
        return None, None, own, *none


@pytest.mark.parametrize("way", ["grad", "backward", "own"])
@pytest.mark.parametrize("calls", [1, 2])
def test_a_checkpoint_function_contributes_its_gradient_once(
    record: Any, way: str, calls: int
) -> None:
    model = nn.Linear(3, 3)
    wants_grad = X.clone().requires_grad_()

    def loss(run: Any) -> Tensor:
        value = wants_grad
        for _ in range(calls):
            value = torch.tanh(run(value))
        return value.square().sum()

    expected = torch.autograd.grad(loss(model), list(model.parameters()))

    def train(ctx: Context) -> None:
        ctx.watch(model)
        with ctx.step(), ctx.microbatch(0):
            loss(lambda x: Checkpoint.apply(model, way, x, *model.parameters())).backward()

    run = record(train)

    for name, grad in zip(("weight", "bias"), expected, strict=True):
        assert torch.allclose(run.get("param_grad", name, microbatch=0), grad)


def test_gradients_of_a_program_that_calls_autograd_grad_itself_are_recorded(record: Any) -> None:
    model = nn.Linear(3, 3)

    def train(ctx: Context) -> None:
        ctx.watch(model)
        with ctx.step(), ctx.microbatch(0):
            grads = torch.autograd.grad(model(X).square().sum(), list(model.parameters()))
            for parameter, grad in zip(model.parameters(), grads, strict=True):
                parameter.grad = grad

    run = record(train)

    assert model.weight.grad is not None
    assert torch.equal(run.get("param_grad", "weight", microbatch=0), model.weight.grad)
