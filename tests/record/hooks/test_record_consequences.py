"""A trace says whether the rank recomputed activations and whether it ran a compiled graph."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pytest_trainsafe.record.context import Context

X = torch.linspace(-1, 1, 12).reshape(4, 3)


class Net(nn.Module):
    """Two layers; `how` says what is recomputed: the second layer, its forward, or a function."""

    def __init__(self, how: str, reentrant: bool = True) -> None:
        super().__init__()
        self.how = how
        self.again = partial(checkpoint, use_reentrant=reentrant)
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        if how == "forward":
            self.second.forward = partial(self.again, self.second.forward)  # type: ignore[method-assign]

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.how == "module":
            return self.again(self.second, x)
        if self.how == "function":
            return self.second(self.again(torch.tanh, x))
        return self.second(torch.tanh(x))


def train(model: nn.Module, ctx: Context, **options: Any) -> None:
    ctx.watch(model, **options)
    for _ in range(2):
        with ctx.step():
            for index in range(2):
                with ctx.microbatch(index):
                    loss = model(X).square().sum()
                    (loss / 2).backward()


@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "not reentrant"])
@pytest.mark.parametrize("how", ["module", "forward", "function"])
def test_activation_recomputation_is_recorded(record: Any, how: str, reentrant: bool) -> None:
    run = record(partial(train, Net(how, reentrant)))

    assert run.rank.note("ran") == ["recompute"]


def test_activation_recomputation_is_recorded_if_no_module_is_selected(record: Any) -> None:
    run = record(partial(train, Net("function")), modules=("nothing",))

    assert run.rank.note("ran") == ["recompute"]


def test_a_plain_backward_is_not_recorded_as_recomputation(record: Any) -> None:
    assert record(partial(train, Net(""))).rank.note("ran") == []


def test_two_backwards_of_a_micro_batch_are_not_recorded_as_recomputation(record: Any) -> None:
    model = Net("")

    def twice(ctx: Context) -> None:
        ctx.watch(model)
        with ctx.step(), ctx.microbatch(0):
            one, two = model(X).square().sum(), model(X + 1).sum()
            one.backward()
            two.backward()

    assert record(twice).rank.note("ran") == []


def test_running_a_compiled_graph_is_recorded(record: Any) -> None:
    twice = torch.compile(lambda x: 2 * x, backend="eager")
    model = Net("")

    def compiled(ctx: Context) -> None:
        ctx.watch(model)
        with ctx.step(), ctx.microbatch(0):
            model(twice(X)).sum().backward()

    assert record(compiled).rank.note("ran") == ["compile"]
    assert record(partial(train, model)).rank.note("ran") == []
