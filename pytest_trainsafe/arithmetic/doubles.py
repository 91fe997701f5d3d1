"""Real numbers in float64: the semantics' formulas, and the decisions for an exact run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pytest_trainsafe.arithmetic.decisions import Decisions
from pytest_trainsafe.arithmetic.numbers import Number, Numbers, Parity, Value


class Doubles(Numbers):
    """float64, rounded; `decisions` has every decision of the run, in order."""

    def __init__(self) -> None:
        self.decisions = Decisions()

    def lift(self, value: Value) -> torch.Tensor:
        if isinstance(value, torch.Tensor):
            return value.to(torch.float64)
        return torch.tensor(value, dtype=torch.float64)

    def enter(self, values: torch.Tensor) -> torch.Tensor:
        return values.to(torch.float64)

    def add(self, x: Value, y: Value) -> torch.Tensor:
        return self.lift(x) + self.lift(y)

    def negate(self, x: Value) -> torch.Tensor:
        return -self.lift(x)

    def multiply(self, x: Value, y: Value) -> torch.Tensor:
        return self.lift(x) * self.lift(y)

    def square(self, x: Value) -> torch.Tensor:
        return self.lift(x).square()

    def inverse(self, x: Value) -> torch.Tensor:
        return self.lift(x).reciprocal()

    def linear(self, function: Callable[..., torch.Tensor], *xs: Value) -> torch.Tensor:
        return function(*map(self.lift, xs))

    def matmul(self, x: Value, y: Value) -> torch.Tensor:
        return self.lift(x) @ self.lift(y)

    def exp(self, x: Value) -> torch.Tensor:
        return self.lift(x).exp()

    def log(self, x: Value) -> torch.Tensor:
        return self.lift(x).log()

    def sqrt(self, x: Value) -> torch.Tensor:
        return self.lift(x).sqrt()

    def function(
        self,
        name: str,
        real: Callable[..., torch.Tensor],
        *xs: Value,
        parity: Parity | None = None,
        at_zero: int | None = None,
    ) -> torch.Tensor:
        return real(*map(self.lift, xs))

    def decide(self, name: str, real: Callable[..., Any], *xs: Value) -> Any:
        lifted = [self.lift(each) for each in xs]
        decision = real(*lifted)
        self.decisions.record(name, lifted, decision)
        return decision

    def bounded(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        return x - x.amax(dim, keepdim=True).nan_to_num(neginf=0.0)

    def shift(self, x: torch.Tensor) -> torch.Tensor:
        return x


def item(value: torch.Tensor) -> Number:
    """The Python number of a tensor with one element."""
    number: Number = value.item()
    return number
