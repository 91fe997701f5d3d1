"""Lists the attributes of optimizers, schedulers, scalers, loaders and others that are recorded.

Each is a Slot, which reads an attribute and notices its changes.  In all functions, `name` is the
name under which the object is recorded, such as "optimizer".
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.optim import Optimizer

from pytest_trainsafe.compat.training import scaler_numbers
from pytest_trainsafe.judges.learn.instrument.describe import as_plain, cut, plain_attributes
from pytest_trainsafe.judges.learn.instrument.facts import Objects
from pytest_trainsafe.judges.learn.instrument.names import public_name
from pytest_trainsafe.judges.learn.instrument.state.slots import Slot

#: The most parameters of a group whose optimizer states are followed.
MAX_STATES = 4096


def of_optimizer(
    name: str, optimizer: Optimizer, objects: Objects, named: Mapping[int, str]
) -> Iterator[Slot]:
    """Yields the Slots of the attributes in an optimizer's groups and states.

    `named` has the names of the models' parameters by their id.
    """
    kind = public_name(type(optimizer))
    for index, group in enumerate(optimizer.param_groups):
        where = f"{name}.param_groups.{index}"
        for key in group:
            if key == "params":
                read: Callable[[], object] = _Identities(group, objects)
                yield Slot(where, kind, "params", "plain", read)
            elif as_plain(group[key]) is not None or isinstance(group[key], torch.Tensor):
                read = functools.partial(group.get, key)
                yield Slot(where, kind, str(key), "plain", read)
        for number, parameter in enumerate(group["params"][:MAX_STATES]):
            held = optimizer.state.get(parameter)
            if not isinstance(held, dict):
                continue
            called = named.get(id(parameter), f"params.{index}.{number}")
            called = called.removeprefix("model.")
            for key, value in held.items():
                if isinstance(value, torch.Tensor) or as_plain(value) is not None:
                    where = f"{name}.state.{called}"
                    read = functools.partial(held.get, key)
                    yield Slot(where, kind, str(key), "state", read)


def of_object(name: str, thing: object) -> Iterator[Slot]:
    """Yields the Slots of an object's attributes that are numbers, bools or texts."""
    kind = public_name(type(thing))
    for attribute in plain_attributes(thing):
        read = functools.partial(getattr, thing, attribute, None)
        yield Slot(name, kind, attribute, "plain", read)


def of_scheduler(name: str, scheduler: Any) -> Iterator[Slot]:
    """Yields the Slots of a scheduler's attributes, and of the numbers that its `lr_lambdas` hold.

    A function holds numbers as keywords of a `functools.partial`, as variables of its closure, or
    as attributes of a callable object.
    """
    yield from of_object(name, scheduler)
    for index, function in enumerate(getattr(scheduler, "lr_lambdas", ())):
        for held, read in _held_by(function):
            yield Slot(
                name, public_name(type(scheduler)), f"lr_lambdas.{index}.{held}", "plain", read
            )


def of_scaler(name: str, scaler: Any) -> Iterator[Slot]:
    """Yields the Slots of the scale, the growth tracker and the settings of a gradient scaler."""
    kind = public_name(type(scaler))
    for number, read in scaler_numbers(scaler):
        yield Slot(name, kind, number, "plain", read)


def of_loader(name: str, loader: Any, counts: dict[str, int]) -> Iterator[Slot]:
    """Yields the Slots of the counts, lengths, dataset, sampler and settings of a loader.

    `counts` has the numbers of its current epoch ("epoch") and of the batches read ("batches").
    """
    kind = public_name(type(loader))
    for attribute in ("epoch", "batches"):
        yield Slot(name, kind, attribute, "plain", functools.partial(counts.get, attribute))
    yield Slot(name, kind, "length", "plain", functools.partial(_length, loader))
    for attribute in ("dataset", "sampler"):
        held = getattr(loader, attribute, None)
        yield Slot(name, kind, f"{attribute}_length", "plain", functools.partial(_length, held))
        if held is not None:
            read: Callable[[], object] = functools.partial(public_name, type(held))
            yield Slot(name, kind, attribute, "plain", read)
    yield from of_object(name, loader)


def _held_by(function: Any) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yields the name of each number that a function holds, and a function that reads it.

    Numbers are keywords of a `functools.partial`, variables of a closure, or attributes of a
    callable object.
    """
    if isinstance(function, functools.partial):
        for name, value in function.keywords.items():
            if isinstance(value, bool | int | float):
                yield name, functools.partial(function.keywords.get, name)
        function = function.func
    code = getattr(function, "__code__", None)
    cells = getattr(function, "__closure__", None) or ()
    if code is not None:
        for name, cell in zip(code.co_freevars, cells, strict=True):
            if isinstance(_content(cell), bool | int | float):
                yield name, functools.partial(_content, cell)
    else:
        for name in plain_attributes(function):
            yield name, functools.partial(getattr, function, name, None)


def _content(cell: Any) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


class _Identities:
    """Reads the numbers of a group's parameters (`Objects.identity`), as one text.

    The text is computed again only if the list is another object or has another length.
    """

    __slots__ = ("_group", "_key", "_objects", "_text")

    def __init__(self, group: Mapping[str, Any], objects: Objects) -> None:
        self._group, self._objects = group, objects
        self._key, self._text = (0, 0), ""

    def __call__(self) -> str:
        held = self._group["params"]
        key = id(held), len(held)
        if key != self._key:
            self._key = key
            self._text = cut(",".join(str(self._objects.identity(each)) for each in held))
        return self._text


def _length(thing: Any) -> int | None:
    """The length of a loader or a dataset; None if it has none or `len` fails."""
    try:
        return len(thing)
    except Exception:  # a user's code may fail in any way
        return None
