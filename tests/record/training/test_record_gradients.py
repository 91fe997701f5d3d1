"""Parameter gradients: each micro-batch's contribution, and what the optimizer uses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_trainsafe.record.context import Context

X = [torch.linspace(-1, 1, 12).reshape(4, 3), torch.linspace(0, 3, 12).reshape(4, 3)]


def small() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


def contributions(model: nn.Module) -> list[tuple[Tensor, ...]]:
    """The gradients that autograd computes for each micro-batch separately."""
    trained = [p for p in model.parameters() if p.requires_grad]
    return [torch.autograd.grad(model(x).square().sum(), trained) for x in X]


@pytest.mark.parametrize("zero", ["none", "zeros", "before", "never"])
def test_accumulated_gradients_are_recorded_per_micro_batch_and_as_a_sum(
    record: Any, zero: str
) -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    first, second = contributions(model)
    names = [name for name, _ in model.named_parameters()]

    def train(ctx: Context) -> None:
        ctx.watch(model, optimizer)
        for _ in range(2):
            with ctx.step():
                if zero == "before":
                    optimizer.zero_grad()
                for index in ctx.microbatches(2):
                    with ctx.microbatch(index):
                        loss = model(X[index]).square().sum()
                        ctx.loss(loss)
                        loss.backward()
                optimizer.step()
                if zero in ("none", "zeros"):
                    optimizer.zero_grad(set_to_none=zero == "none")

    run = record(train)
    for step in range(2):
        for name, one, two in zip(names, first, second, strict=True):
            assert torch.equal(run.get("param_grad", name, step=step), one)
            assert torch.equal(run.get("param_grad", name, step=step, microbatch=1), two)
            total = one + two
            if zero == "never" and step == 1:
                total = total + one + two
            assert torch.equal(run.get("main_grad", name, step=step), total)
    assert torch.equal(run.get("loss", "loss"), model(X[0]).square().sum().detach())


def test_main_grad_is_the_clipped_gradient(record: Any) -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    one, _ = contributions(model)

    def train(ctx: Context) -> None:
        ctx.watch(model, optimizer)
        with ctx.step():
            with ctx.microbatch(0):
                model(X[0]).square().sum().backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            ctx.grad_norm(norm)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()

    run = record(train)
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in one]))
    assert torch.equal(run.get("grad_norm", "grad_norm"), norm)
    expected = one[0] * torch.clamp(0.5 / (norm + 1e-6), max=1.0)
    assert torch.equal(run.get("main_grad", "0.weight"), expected)
    assert torch.equal(run.get("param_grad", "0.weight"), one[0])


def test_the_main_grad_attribute_takes_precedence_over_grad(record: Any) -> None:
    model = nn.Linear(3, 2).bfloat16()
    x = [each.bfloat16() for each in X]
    first, second = (torch.autograd.grad(model(each).sum(), model.weight)[0] for each in x)
    weight: Any = model.weight
    weight.main_grad = torch.zeros(2, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(ctx: Context) -> None:
        ctx.watch(model, optimizer)
        with ctx.step():
            for index in range(2):
                with ctx.microbatch(index):
                    model(x[index]).sum().backward()
                    weight.main_grad += weight.grad.float()
                    weight.grad = None
            optimizer.step()

    run = record(train)
    expected = first.float() + second.float()
    assert run.get("main_grad", "weight").dtype == torch.float32
    assert torch.equal(run.get("main_grad", "weight"), expected)
    assert torch.equal(run.get("param_grad", "weight", microbatch=1), second)
    assert torch.equal(run.get("main_grad", "bias"), torch.full((2,), 8.0).bfloat16())


def test_frozen_and_unused_parameters_are_recorded_without_gradients(record: Any) -> None:
    model = small()
    model[0].weight.requires_grad_(False)
    model.unused = nn.Linear(1, 1)
    model.forward = lambda x: model[2](model[1](model[0](x)))  # type: ignore[method-assign]

    def train(ctx: Context) -> None:
        ctx.watch(model)
        with ctx.step(), ctx.microbatch(0):
            model(X[0]).sum().backward()

    run = record(train)
    gradients = {"0.bias", "2.weight", "2.bias"}
    assert set(run.paths("param_grad")) == set(run.paths("main_grad")) == gradients
    assert set(run.paths("param", 0)) == gradients | {"0.weight", "unused.weight", "unused.bias"}


def test_gradients_of_an_unfrozen_parameter_are_recorded_from_then_on(record: Any) -> None:
    model = small()
    model[0].weight.requires_grad_(False)

    def train(ctx: Context) -> None:
        ctx.watch(model)
        for _ in range(2):
            with ctx.step(), ctx.microbatch(0):
                model(X[0]).square().sum().backward()
            model.zero_grad()
            model[0].weight.requires_grad_()

    run = record(train)
    assert "0.weight" not in run.paths("param_grad", 0)
    assert torch.equal(run.get("param_grad", "0.weight", step=1), contributions(model)[0][0])


def test_tied_parameters_are_recorded_once_under_their_first_name(record: Any) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(5, 3)
            self.head = nn.Linear(3, 5, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, tokens: Tensor) -> Tensor:
            return self.head(self.embed(tokens))

    model = Tied()
    tokens = torch.tensor([0, 2, 2])
    weight = model.embed.weight
    (expected,) = torch.autograd.grad(model(tokens).square().sum(), weight)

    def train(ctx: Context) -> None:
        ctx.initialize(model)
        (expected,) = torch.autograd.grad(model(tokens).square().sum(), weight)
        ctx.watch(model)
        with ctx.step(), ctx.microbatch(0):
            model(tokens).square().sum().backward()
        assert weight.grad is not None
        assert torch.equal(weight.grad, expected)

    run = record(train)
    assert run.paths("param_grad") == run.paths("main_grad") == ["embed.weight"]
    assert run.paths("param", -1) == ["embed.weight"]
    assert weight.grad is not None
    assert torch.equal(run.get("param_grad", "embed.weight"), weight.grad)
    assert not torch.equal(weight.grad, expected)  # initialize gave other values


def test_sparse_gradients_are_recorded_dense(record: Any) -> None:
    model = nn.Sequential(nn.Embedding(5, 3, sparse=True))
    tokens = torch.tensor([0, 2, 2])

    def train(ctx: Context) -> None:
        ctx.watch(model, torch.optim.SGD(model.parameters(), lr=0.1))
        with ctx.step(), ctx.microbatch(0):
            model(tokens).sum().backward()

    run = record(train)
    expected = torch.tensor([1.0, 0, 2, 0, 0])[:, None].expand(5, 3)
    assert torch.equal(run.get("param_grad", "0.weight"), expected)
    assert torch.equal(run.get("main_grad", "0.weight"), expected)


def test_gradients_are_recorded_after_earlier_hooks_changed_them(record: Any) -> None:
    model = nn.Linear(3, 2)
    model.weight.register_hook(lambda grad: grad * 3)

    def train(ctx: Context) -> None:
        ctx.watch(model)
        with ctx.step(), ctx.microbatch(0):
            F.relu(model(X[0])).sum().backward()

    run = record(train)
    assert model.weight.grad is not None
    assert torch.equal(run.get("param_grad", "weight"), model.weight.grad)
    assert torch.equal(run.get("main_grad", "weight"), model.weight.grad)
