"""A program may replace functions of torch by chains of its own; each runs once per call."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pytest_trainsafe.record.lines.origins import Origins
from pytest_trainsafe.trace.writer import RankWriter

#: Replaces an attribute by a function that calls what was there, and counts its calls.
Replace = Callable[[Any, str, Callable[..., Any]], None]


class Counted:
    """Counts the calls of the functions that replace attributes of torch."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self._patch = monkeypatch

    def put(self, holder: Any, name: str, value: Any) -> None:
        self._patch.setattr(holder, name, value)

    def function(self, original: Any, label: str) -> Callable[..., Any]:
        def replacement(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(label)
            return original(*args, **kwargs)

        return replacement

    def chain(self, holder: Any, name: str, length: int) -> list[str]:
        """Replaces an attribute `length` times; returns the labels in the order of calls."""
        for number in range(length):
            self.put(holder, name, self.function(getattr(holder, name), f"{name}{number}"))
        return [f"{name}{number}" for number in reversed(range(length))]


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)


@pytest.fixture
def origins(tmp_path: Path) -> Iterator[Origins]:
    with Origins(RankWriter(tmp_path, 0)) as mode:
        yield mode


class Proxy:
    """A descriptor that makes a new callable for each access, as libraries for patching do."""

    def __init__(self, wrapped: Any, calls: list[str]) -> None:
        self.__wrapped__, self.calls = wrapped, calls

    def __get__(self, tensor: Any, owner: Any) -> Proxy:
        return Proxy(self.__wrapped__.__get__(tensor, owner), self.calls)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls.append("proxy")
        return self.__wrapped__(*args, **kwargs)


class Shim:
    """Has methods that replace methods of a tensor."""

    def __init__(self, original: Any, calls: list[str]) -> None:
        self.original, self.calls = original, calls

    def cos(self, tensor: Tensor) -> Any:
        self.calls.append("bound")
        return self.original(tensor)


@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize("before", [True, False], ids=["before the program", "during it"])
@pytest.mark.parametrize(
    ("holder", "name", "call"),
    [
        (torch.Tensor, "to", lambda x: x.to(torch.float64)),
        (torch.Tensor, "cos", lambda x: x.cos()),
        (torch.Tensor, "norm", lambda x: x.norm()),
        (torch.Tensor, "add_", lambda x: x.clone().add_(1)),
        (torch.Tensor, "__add__", lambda x: x + 1),
        (torch, "cos", lambda x: torch.cos(x)),
        (torch, "einsum", lambda x: torch.einsum("ij->ji", x)),
        (functional, "layer_norm", lambda x: functional.layer_norm(x, (2,))),
        (functional, "linear", lambda x: functional.linear(x, x)),
        (functional, "max_pool2d", lambda x: functional.max_pool2d(x[None], 2)),
        (nn.init, "ones_", lambda x: nn.init.ones_(x.clone())),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_function_of_a_chain_runs_once(
    counted: Counted,
    tmp_path: Path,
    holder: Any,
    name: str,
    call: Any,
    length: int,
    before: bool,
) -> None:
    values = torch.arange(4.0).reshape(2, 2)
    expected = call(values)
    if before:
        labels = counted.chain(holder, name, length)
        with Origins(RankWriter(tmp_path, 0)):
            found = call(values)
    else:
        with Origins(RankWriter(tmp_path, 0)):
            labels = counted.chain(holder, name, length)
            found = call(values)

    assert torch.equal(found, expected)
    assert found.dtype == expected.dtype
    assert counted.calls == labels


@pytest.mark.parametrize("length", [1, 2, 3])
def test_every_getter_and_setter_of_a_chain_runs_once(
    counted: Counted, tmp_path: Path, length: int
) -> None:
    for number in range(length):
        old: Any = vars(torch.Tensor).get("data", torch._C.TensorBase.data)
        getter, setter = (
            counted.function(access, f"{access.__name__}{number}")
            for access in (old.__get__, old.__set__)
        )
        counted.put(torch.Tensor, "data", property(getter, setter))
    values = torch.zeros(2)
    order = [*reversed(range(length))]

    with Origins(RankWriter(tmp_path, 0)):
        values.data = torch.ones(2)
        assert counted.calls == [f"__set__{number}" for number in order]
        counted.calls.clear()
        read = values.data

    assert counted.calls == [f"__get__{number}" for number in order]
    assert torch.equal(read, torch.ones(2))


def test_partial_methods_bound_methods_and_proxies_run_once(
    counted: Counted, origins: Origins
) -> None:
    original = torch.Tensor.cos

    def through(tensor: Tensor, label: str) -> Any:
        counted.calls.append(label)
        return original(tensor)

    counted.put(torch.Tensor, "cos", functools.partialmethod(through, "partial"))
    before = torch.Tensor.cos
    shim = Shim(before, counted.calls)
    # A function that passes a tensor to a method of an object, and a proxy of that function.
    counted.put(torch.Tensor, "cos", lambda tensor: shim.cos(tensor))
    inner = vars(torch.Tensor)["cos"]
    counted.put(torch.Tensor, "cos", Proxy(inner, counted.calls))

    assert torch.equal(torch.zeros(2).cos(), torch.ones(2))
    assert counted.calls == ["proxy", "bound", "partial"]


@pytest.mark.parametrize("kind", ["partial", "bound", "partialmethod", "proxy", "staticmethod"])
def test_a_replacement_of_any_kind_runs_once(counted: Counted, origins: Origins, kind: str) -> None:
    original = torch.Tensor.cos
    shim = Shim(original, counted.calls)
    replacement: Any
    if kind == "partial":

        def through(label: str, tensor: Tensor) -> Any:
            counted.calls.append(label)
            return original(tensor)

        partial = functools.partial(through, "partial")
        replacement = property(lambda tensor: functools.partial(partial, tensor))
    elif kind == "bound":
        replacement = property(lambda tensor: functools.partial(shim.cos, tensor))
    elif kind == "partialmethod":
        replacement = functools.partialmethod(lambda tensor: shim.cos(tensor))
    elif kind == "proxy":
        replacement = Proxy(original, counted.calls)
    else:
        # Called on the class: the tensor is an argument.
        replacement = staticmethod(shim.cos)
    counted.put(torch.Tensor, "cos", replacement)
    values = torch.zeros(2)

    found: Any = torch.Tensor.cos(values) if kind == "staticmethod" else values.cos()

    assert torch.equal(found, torch.ones(2))
    assert len(counted.calls) == 1


def test_two_methods_that_one_factory_replaces_are_told_apart(
    counted: Counted, origins: Origins
) -> None:
    counted.chain(torch.Tensor, "cos", 2)
    counted.chain(torch.Tensor, "sin", 2)

    values = torch.zeros(2)
    assert torch.equal(values.cos(), torch.ones(2))
    assert torch.equal(values.sin(), torch.zeros(2))
    assert counted.calls == ["cos1", "cos0", "sin1", "sin0"]


def test_replacements_told_apart_by_a_default_only_keep_their_methods(
    counted: Counted, origins: Origins
) -> None:
    for name in ("cos", "sin"):
        original = getattr(torch.Tensor, name)

        def through(tensor: Tensor, _original: Any = original) -> Any:
            counted.calls.append("through")
            return _original(tensor)

        counted.put(torch.Tensor, name, through)

    values = torch.zeros(2)
    assert torch.equal(values.cos(), torch.ones(2))
    assert torch.equal(values.sin(), torch.zeros(2))
    assert len(counted.calls) == 2


def test_functions_that_nobody_replaced_are_called_as_they_are(origins: Origins) -> None:
    values = torch.arange(4.0).reshape(2, 2)
    assert torch.equal(functional.relu(values), values)
    assert torch.equal(1 - values, 1 + -values)
    assert torch.equal(values.split(1)[0], values[:1])
    assert values.grad is None
    assert values.shape == (2, 2)
    assert torch.unique(values).tolist() == [0, 1, 2, 3]
    assert functional.max_pool2d(values[None], 2).item() == 3
