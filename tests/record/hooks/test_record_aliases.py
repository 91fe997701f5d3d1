"""Outputs that share memory with an input or with each other are recorded with their own values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pytest_trainsafe.record.context import Context

X = torch.linspace(-1, 1, 12).reshape(4, 3)


class Returns(nn.Module):
    """Applies a function, as a module, so that the result is recorded."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, y: Tensor) -> Any:
        return self.function(y)


class Model(nn.Module):
    def __init__(self, first: Callable[[Tensor], Any], then: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self.fc, self.odd, self.then = nn.Linear(3, 6), Returns(first), then

    def forward(self, x: Tensor) -> Tensor:
        return self.then(self.odd(self.fc(x)))


def run_of(record: Any, model: Model) -> Any:
    def train(ctx: Context) -> None:
        ctx.watch(model)
        with ctx.step(), ctx.microbatch(0):
            model(X).square().sum().backward()

    return record(train)


def add_to_input(y: Tensor) -> Tensor:
    return y.mul_(3)


@pytest.mark.parametrize("later", [False, True], ids=["as it is", "modified again"])
def test_input_and_output_of_an_in_place_module_are_recorded_with_their_own_values(
    record: Any, later: bool
) -> None:
    model = Model(add_to_input, lambda y: y.relu_() if later else y.relu())
    y = model.fc(X)
    z = y * 3
    grads = torch.autograd.grad(z.relu().square().sum(), (y, z))
    run = run_of(record, model)
    for path, value, grad in zip(("fc.output", "odd.output"), (y, z), grads, strict=True):
        assert torch.equal(run.get("activation", path), value.detach())
        assert torch.equal(run.get("activation_grad", path), grad)


def halves(y: Tensor) -> tuple[Tensor, Tensor]:
    return y[:, :3], y[:, 3:]


@pytest.mark.parametrize(
    ("split", "modify"),
    [(halves, False), (halves, True), (lambda y: y.chunk(2, 1), False)],
    ids=["slices", "slices, one modified", "chunks"],
)
def test_outputs_that_are_views_of_the_input_have_their_own_values_and_gradients(
    record: Any, split: Callable[[Tensor], Any], modify: bool
) -> None:
    def then(pair: tuple[Tensor, Tensor]) -> Tensor:
        first, second = pair
        return (first.mul_(2) if modify else first * 2) * second

    model = Model(split, then)
    y = model.fc(X)
    first, second = halves(y)
    expected = torch.autograd.grad((first * 2 * second).square().sum(), (first, second))
    run = run_of(record, model)
    for place, value, grad in zip((0, 1), (first, second), expected, strict=True):
        assert torch.equal(run.get("activation", f"odd.output.{place}"), value.detach())
        assert torch.equal(run.get("activation_grad", f"odd.output.{place}"), grad)


def test_a_tensor_returned_twice_has_its_total_gradient_under_both_paths(record: Any) -> None:
    model = Model(lambda y: (y, y), lambda pair: pair[0] * 2 + pair[1].square())
    y = model.fc(X)
    (grad,) = torch.autograd.grad((y * 2 + y.square()).square().sum(), y)
    run = run_of(record, model)
    for path in ("fc.output", "odd.output.0", "odd.output.1"):
        assert torch.equal(run.get("activation", path), y.detach())
        assert torch.equal(run.get("activation_grad", path), grad)


def test_an_output_changed_in_place_by_a_later_module_is_recorded_with_its_earlier_values(
    record: Any,
) -> None:
    """A residual that a later module adds to in place, as fused kernels do."""

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.same = nn.Linear(3, 6), nn.Identity()
            self.add = Returns(lambda y: y.add_(1))

        def forward(self, x: Tensor) -> Tensor:
            stream = self.same(self.fc(x))
            self.add(stream)
            return stream

    model = Residual()
    y = model.fc(X).detach()

    def train(ctx: Context) -> None:
        ctx.watch(model)
        with ctx.step(), ctx.microbatch(0):
            model(X).square().sum().backward()

    run = record(train)
    for path in ("fc.output", "same.output"):
        assert torch.equal(run.get("activation", path), y)
    for path in ("add.output", "output"):
        assert torch.equal(run.get("activation", path), y + 1)
    for path in ("fc.output", "same.output", "add.output", "output"):
        assert torch.equal(run.get("activation_grad", path), 2 * (y + 1)), path


def test_recording_does_not_keep_the_memory_of_an_output_that_no_backward_needs(
    record: Any,
) -> None:
    memory = []

    def add(y: Tensor) -> Tensor:
        memory.append(y.untyped_storage()._weak_ref())
        return y + 1

    model = Model(add, lambda y: y)

    def train(ctx: Context) -> None:
        ctx.watch(model)
        with ctx.step(), ctx.microbatch(0):
            output = model(X[None])  # 3-d, so the linear layer returns a view
            freed.append(torch.UntypedStorage._expired(memory[-1]))
            output.square().sum().backward()

    freed: list[object] = []
    record(train)
    assert freed == [True]
