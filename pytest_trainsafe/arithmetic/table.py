"""The table of semantics: for each operator of torch, what it computes on exact numbers.

`@semantics_of("aten.name", examples=...)` states an operator by its primitives; `moves` states
that operators only move or copy elements.  In-place, `out` and foreach variants follow from the
functional operator.  Semantics of another package are registered in the same way, under the name
of its namespace: "mylib.kernel".
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from pytest_trainsafe.errors import ArgumentError

Rule = Callable[..., Any]
AnyRule = TypeVar("AnyRule", bound=Rule)


@dataclass(frozen=True)
class Call:
    """The arguments of one call of an operator, with real float64 tensors."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)


def call(*args: Any, **kwargs: Any) -> Call:
    return Call(args, kwargs)


class Draw:
    """Small rational numbers for the examples of a semantics, the same each time."""

    def __init__(self, seed: int = 0) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int) -> torch.Tensor:
        """Multiples of 1/8 between -4 and 4 without zero, all different as far as possible."""
        return (self.positive(*shape) * (1 - 2 * self.integers(2, *shape))).to(torch.float64)

    def positive(self, *shape: int) -> torch.Tensor:
        """Multiples of 1/8 from 1/8 to 4, all different as far as possible."""
        count = torch.Size(shape).numel()
        drawn = [torch.randperm(32, generator=self._generator) for _ in range(count // 32 + 1)]
        return ((torch.cat(drawn)[:count] + 1).to(torch.float64) / 8).reshape(shape)

    def integers(self, below: int, *shape: int) -> torch.Tensor:
        return torch.randint(below, shape, generator=self._generator)

    def mask(self, *shape: int) -> torch.Tensor:
        return self.integers(2, *shape) == 1


Examples = Callable[[Draw], Iterable[Call]]


@dataclass(frozen=True)
class Semantics:
    """What one operator computes.

    `rule` takes `Numbers` and the operator's arguments; None stands for the operator itself, which
    moves elements.  `examples` are calls on which the rule is tested.  An operator that makes
    numbers without being given any is a `factory`: its rule is used for every dtype, as that of an
    operator `between_ranks`.  A `random` one returns memory that nobody wrote, so its values are
    compared with nothing.
    """

    name: str
    rule: Rule | None
    examples: Examples
    factory: bool = False
    random: bool = False
    between_ranks: bool = False


_TABLE: dict[str, Semantics] = {}
_loaded = False


def semantics_of(
    *names: str,
    examples: Examples,
    factory: bool = False,
    random: bool = False,
    between_ranks: bool = False,
) -> Callable[[AnyRule], AnyRule]:
    """Register the decorated function as the semantics of operators, such as "aten.addmm".

    It is called with `Numbers` and the operator's arguments, where float tensors are float64
    tensors of these numbers, and returns what the operator returns.  `examples` takes a `Draw` and
    returns calls with which `check_semantics` compares the function with the operator.
    """

    def register(rule: AnyRule) -> AnyRule:
        for name in names:
            _enter(Semantics(name, rule, examples, factory, random, between_ranks))
        return rule

    return register


def moves(*names: str, examples: Examples) -> None:
    """Register operators that only move or copy elements, or read none: they run as they are."""
    for name in names:
        _enter(Semantics(name, None, examples))


def _enter(semantics: Semantics) -> None:
    space, dot, operator = semantics.name.partition(".")
    if not (space and dot and operator):
        raise ArgumentError(
            f'semantics_of takes names such as "aten.mul" or "mylib.kernel", not {semantics.name!r}'
        )
    if semantics.name in _TABLE:
        raise ArgumentError(
            f"{semantics.name} has semantics already; to replace them, take the table of `table()`,"
            " change the copy, and pass it to ExactMode"
        )
    _TABLE[semantics.name] = semantics


def table() -> dict[str, Semantics]:
    """A copy of the table, by names of operators; built-in semantics are loaded first."""
    global _loaded
    if not _loaded:
        _loaded = True
        package = importlib.import_module("pytest_trainsafe.arithmetic.semantics")
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            importlib.import_module(module.name)
    return dict(_TABLE)
