"""What a rank keeps beside its model is its own, though other ranks of the process keep some."""

from __future__ import annotations

import copy
import functools
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed as dist
from torch import nn

from pytest_trainsafe.record.model.held import held_here
from pytest_trainsafe.record.model.unwatched import Beside
from pytest_trainsafe.trace.run_spec import RunSpec
from tests.support.launch.in_turn import in_turn

SPEC = RunSpec(program="a:b", dtype="float64")
WORLD = 3


class Holder:
    """An object of the program."""

    kept: Any = None


class Slotted:
    """An object without a `__dict__`."""

    __slots__ = ("kept",)

    def __init__(self, kept: Any) -> None:
        self.kept = kept


def as_module(model: nn.Module) -> Any:
    """An average of the weights in a module."""
    return copy.deepcopy(model)


def as_dict(model: nn.Module) -> Any:
    """An average of the weights by their names."""
    return {name: each.detach().clone() for name, each in model.named_parameters()}


def as_list(model: nn.Module) -> Any:
    """An average of the weights in their order."""
    return [each.detach().clone() for each in model.parameters()]


def in_closure(kept: Any) -> Any:
    """A function that holds it."""
    return lambda: kept


def in_class(kept: Any) -> Any:
    """A class of the program that holds it."""
    return type("Kind", (Holder,), {"kept": kept, "__module__": __name__})


def in_generator(kept: Any) -> Any:
    """A generator that has begun."""

    def numbers() -> Any:
        yield 1
        yield kept

    found = numbers()
    next(found)
    return found


#: Where a program keeps its average.
PLACES: list[Callable[[Any], Any]] = [
    lambda kept: kept,
    lambda kept: [{"deep": (kept,)}],
    lambda kept: types.SimpleNamespace(kept=kept),
    lambda kept: functools.partial(print, kept),
    Slotted,
    in_closure,
    in_class,
    in_generator,
]


def values(place: Callable[[Any], Any], make: Callable[[nn.Module], Any]) -> list[list[float]]:
    """What is found beside the model of this rank, as the first number of each."""
    beside = Beside(SPEC, None)  # type: ignore[arg-type]
    dist.barrier()
    first = nn.Linear(1, 2)
    nn.init.constant_(first.get_parameter("weight"), dist.get_rank())
    model = nn.Sequential(first, nn.Linear(2, 1))
    held = place(make(model)) if dist.get_rank() != 1 else None
    beside.watch([("", model)], dict(model.named_parameters()))
    dist.barrier()
    found = [[w.detach().flatten()[0].item() for w in kept[:1]] for _, kept in beside.weights()]
    dist.barrier()
    assert (held is None) is (dist.get_rank() == 1)
    return found


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("make", [as_module, as_dict, as_list])
def test_each_rank_finds_what_it_keeps_and_not_what_the_others_keep(
    make: Callable[[nn.Module], Any], place: Callable[[Any], Any]
) -> None:
    """The second rank keeps nothing."""
    assert in_turn(functools.partial(values, place, make), WORLD) == [[[0.0]], [], [[2.0]]]


def test_a_variable_that_a_function_deletes_goes_although_its_frame_was_read() -> None:
    gone: list[int] = []
    made = nn.Linear(1, 1)
    weakref.finalize(made, gone.append, 1)

    assert id(made) in held_here()
    del made

    assert gone == [1]
