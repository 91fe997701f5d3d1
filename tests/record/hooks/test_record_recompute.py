"""Activation recomputation: each call is recorded once, with the gradient of the same call."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pytest_trainsafe.record.context import Context

X = torch.linspace(-1, 1, 12).reshape(4, 3)


class Blocks(nn.Module):
    """Calls one block several times, some of the calls under a checkpoint, as `plan` says.

    "." plain, "r" reentrant, "n" non-reentrant, "R" and "N" such a checkpoint inside another one.
    """

    def __init__(self, plan: str) -> None:
        super().__init__()
        self.plan = plan
        self.first = nn.Linear(3, 3)
        # Of an operator whose derivative uses its own result, as tanh's, a checkpoint makes the
        # result again without noise.
        self.block = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.25), nn.SiLU())

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for kind in self.plan:
            reentrant = kind in "rR"
            if kind == ".":
                x = self.twice(x)
            elif kind in "rn":
                x = checkpoint(self.twice, x, use_reentrant=reentrant)
            else:
                inner = lambda y, r=reentrant: checkpoint(self.twice, y, use_reentrant=r) + y  # noqa: E731
                x = checkpoint(inner, x, use_reentrant=reentrant)
        return x

    def twice(self, x: Tensor) -> Tensor:
        return self.block(self.block(x)) * 2


class Plain(Blocks):
    """The same calls without any checkpoint."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for kind in self.plan:
            x = self.twice(x) + x if kind in "RN" else self.twice(x)
        return x


def train_once(model: nn.Module) -> Any:
    def train(ctx: Context) -> None:
        ctx.watch(model)
        for _ in range(2):
            with ctx.step():
                for index in range(2):
                    with ctx.microbatch(index):
                        model(X).square().sum().backward()

    return train


def same(run: Any, expected: Any) -> None:
    """Asserts equal tensors bit by bit; parameter gradients up to the order of summation.

    Reentrant checkpoints add a shared parameter's terms in another order.
    """
    assert set(run.rank.tensors) == set(expected.rank.tensors)
    wrong = []
    for id in expected.rank.tensors:
        one, other = (each.trace.load(0, each.rank.tensors[id]) for each in (run, expected))
        if id.kind in ("param_grad", "main_grad"):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
        elif not torch.equal(one, other):
            wrong.append(str(id))
    assert wrong == []


@pytest.mark.parametrize(
    "plan", ["r", "n", "rr", "nn", ".r.", ".n.", "rrr", "r.r", "rn", "nr", "R", "N", "RR", ".RrR"]
)
def test_activation_recomputation_does_not_change_what_is_recorded(record: Any, plan: str) -> None:
    plain = Plain(plan)
    model = Blocks(plan)
    model.load_state_dict(plain.state_dict())
    same(record(train_once(model)), record(train_once(plain)))


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_recomputed_model_records_its_input_and_activations_once(
    record: Any, reentrant: bool
) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    x = X.clone().requires_grad_()

    def train(ctx: Context) -> None:
        ctx.watch(model)
        with ctx.step(), ctx.microbatch(0):
            checkpoint(model, x, use_reentrant=reentrant).sum().backward()

    run = record(train)
    assert len(run.rank.inputs) == 1
    assert run.paths("activation") == ["0.output", "1.output", "output"]
    assert sorted(run.paths("activation_grad")) == ["0.output", "1.output", "output"]


@pytest.mark.parametrize("reentrant", [True, False])
def test_two_backward_passes_with_recomputation_record_the_same_as_without(
    record: Any, reentrant: bool
) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    x = X.clone().requires_grad_()
    plain = copy.deepcopy(model)

    def train(model: nn.Module, ctx: Context, recompute: bool) -> None:
        ctx.watch(model)
        with ctx.step(), ctx.microbatch(0):
            if recompute:
                y = checkpoint(model, x, use_reentrant=reentrant)
            else:
                y = model(x)
            y.sum().backward(retain_graph=True)
            y.square().sum().backward()

    expected = record(lambda ctx: train(plain, ctx, False)).hashes()
    assert record(lambda ctx: train(model, ctx, True)).hashes() == expected


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputed_outputs_get_the_same_noise(record: Any, reentrant: bool) -> None:
    plan = "rr" if reentrant else "nn"
    plain = Plain(plan)
    model = Blocks(plan)
    model.load_state_dict(plain.state_dict())
    expected = record(train_once(plain), perturbation=2.0**-10)
    same(record(train_once(model), perturbation=2.0**-10), expected)
    assert record(train_once(plain)).hashes() != expected.hashes()


def test_a_module_called_only_in_a_backward_is_not_recorded(record: Any) -> None:
    """A custom autograd function may call a module in its backward."""

    class Odd(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            with torch.no_grad():
                return grad * 2 + model.helper(grad) * 0

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.helper = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return Odd.apply(self.fc(x))

    model = Model()
    run = record(train_once(model))
    assert run.paths("activation", 0) == ["fc.output", "output"] * 2
