"""Tensors in outputs that the recorder cannot read are listed once in the trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pytest_trainsafe.record.context import Context
from pytest_trainsafe.record.hooks.not_recorded import not_recorded

X = torch.linspace(-1, 1, 12).reshape(4, 3)


class Cache:
    """Has tensors in its attributes, as caches have, and a property that must not be read."""

    def __init__(self, tensor: Tensor) -> None:
        self.keys, self.values, self.length = tensor, [{"v": tensor}], 3

    @property
    def expensive(self) -> Tensor:
        raise AssertionError("a property was called")


class Slotted:
    __slots__ = ("_held", "unset")

    def __init__(self, tensor: Tensor) -> None:
        self._held = tensor


@dataclass
class Output:
    logits: Tensor
    cache: Cache


class Model(nn.Module):
    """A linear layer, and a leaf module that returns what `wrap` makes."""

    def __init__(self, wrap: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.fc, self.odd = nn.Linear(3, 5), Odd(wrap)

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        for _ in range(2):
            self.odd(y)
        return y


class Odd(nn.Module):
    def __init__(self, wrap: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.wrap = wrap

    def forward(self, y: Tensor) -> Any:
        return self.wrap(y)


def train(model: nn.Module) -> Callable[[Context], None]:
    def program(ctx: Context) -> None:
        ctx.watch(model)
        with ctx.step(), ctx.microbatch(0):
            model(X).square().sum().backward()

    return program


def generated(tensor: Tensor) -> Iterator[Tensor]:
    yield tensor


def ragged(tensor: Tensor) -> Tensor:
    return torch.nested.nested_tensor(
        [tensor[0, :2].detach(), tensor[1].detach()], layout=torch.jagged
    )


def quantized(tensor: Tensor) -> Tensor:
    return torch.quantize_per_tensor(tensor.detach(), 0.1, 0, torch.qint8)


@pytest.mark.filterwarnings("ignore:.*quantize.*")
@pytest.mark.parametrize("perturbation", [0.0, 2.0**-10], ids=["plain", "noise"])
@pytest.mark.parametrize(
    ("wrap", "named"),
    [
        (Cache, "output is a Cache, with tensors in keys, values"),
        (Slotted, "output is a Slotted, with tensors in _held"),
        (lambda y: Output(y, Cache(y)), "output.cache is a Cache, with tensors in keys, values"),
        (lambda y: {"all": {y}}, "output.all is a set of tensors"),
        (generated, "output is a generator, which cannot be read without consuming it"),
        (lambda y: (1, y.detach().numpy()), "output.1 is a numpy ndarray"),
        (lambda y: y.to("meta"), "output is a tensor on the meta device, without values"),
        (ragged, "output is a nested tensor"),
        (quantized, "output is a quantized tensor"),
    ],
    ids=["object", "slots", "field", "set", "generator", "numpy", "meta", "nested", "quantized"],
)
def test_tensors_that_cannot_be_recorded_are_listed_once(
    record: Any, wrap: Callable[[Tensor], Any], named: str, perturbation: float
) -> None:
    run = record(train(Model(wrap)), perturbation=perturbation)
    assert run.rank.note("not_compared") == [f"odd: {named}"]
    places = [path for path in run.paths("activation") if path.startswith("odd.")]
    assert places == (["odd.output.logits", "odd.output.logits#1"] if "cache" in named else [])
    assert "fc.output" in run.paths("activation_grad")


def test_recording_does_not_consume_a_generator_that_a_module_returns(record: Any) -> None:
    """The program still gets the first item of each generator."""
    seen: list[Any] = []

    def given(y: Tensor) -> Any:
        seen.append(generated(y))
        return seen[-1]

    model = Model(given)
    record(train(model))
    assert all(isinstance(next(each), Tensor) for each in seen)


@pytest.mark.parametrize(
    "value",
    [
        None,
        "text",
        3,
        2j,
        {"a": None},
        object(),
        [],
        Tensor,
        torch.float32,
        torch.Size([2]),
        {1, 2},
    ],
    ids=lambda value: repr(value).partition(" at ")[0],
)
def test_values_without_tensors_are_not_listed_as_not_recorded(value: object) -> None:
    assert list(not_recorded(value)) == []


def test_modules_and_tensors_are_not_listed_as_not_recorded() -> None:
    layer = nn.Linear(2, 2)
    assert list(not_recorded((layer, layer.weight, torch.ones(2), torch.ones(2).to_sparse()))) == []


def test_optimizer_states_and_main_params_of_another_shape_are_listed_as_not_compared(
    record: Any,
) -> None:
    class Factored(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for parameter in self.param_groups[0]["params"]:
                self.state[parameter]["rows"] = parameter.detach().abs().mean(-1)

    model = nn.Linear(3, 4, bias=False)
    model.weight.tensor_model_parallel = True  # type: ignore[attr-defined]
    model.weight.partition_dim = 0  # type: ignore[attr-defined]
    model.weight.main_param = torch.zeros(6)  # type: ignore[attr-defined]

    def program(ctx: Context) -> None:
        optimizer = Factored(model.parameters(), lr=0.1)
        ctx.watch(model, optimizer)
        for _ in range(2):
            with ctx.step():
                with ctx.microbatch(0):
                    model(X).sum().backward()
                optimizer.step()

    assert record(program, point={"tp": 2}).rank.note("not_compared") == [
        "the main_param of weight does not have the parameter's shape",
        "the optimizer's rows of weight does not have the parameter's shape",
    ]
