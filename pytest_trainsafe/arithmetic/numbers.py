"""What the semantics of operators are made of: primitives of real numbers, in two versions.

The semantics of an operator is a function of `Numbers` and of the operator's arguments.
`Residues` computes it exactly; `Doubles` computes the same formula in float64, which shows that
the formula is the operator's, and takes the decisions that residues cannot take.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch

Number = bool | int | float
Value = torch.Tensor | Number
Dims = int | Sequence[int] | None
Parity = Literal["odd", "even"]

_garbage = torch.Generator()
_garbage.seed()


class Numbers(ABC):
    """Arithmetic of float64 tensors that carry numbers of one kind.

    Every method takes tensors of this kind, integer or bool tensors, and Python numbers, and
    broadcasts like torch's operators.
    """

    @abstractmethod
    def lift(self, value: Value) -> torch.Tensor:
        """A tensor of these numbers: integers, masks and constants as the numbers they mean."""

    @abstractmethod
    def enter(self, values: torch.Tensor) -> torch.Tensor:
        """Real float64 values, such as data or random draws, as numbers of this kind."""

    @abstractmethod
    def add(self, x: Value, y: Value) -> torch.Tensor: ...

    @abstractmethod
    def negate(self, x: Value) -> torch.Tensor: ...

    @abstractmethod
    def multiply(self, x: Value, y: Value) -> torch.Tensor: ...

    @abstractmethod
    def square(self, x: Value) -> torch.Tensor:
        """x * x, where the square of a root is what the root was taken of."""

    @abstractmethod
    def inverse(self, x: Value) -> torch.Tensor:
        """1 / x, and infinity for zero."""

    @abstractmethod
    def linear(self, function: Callable[..., torch.Tensor], *xs: Value) -> torch.Tensor:
        """`function` of the tensors, which only sums and moves elements."""

    @abstractmethod
    def matmul(self, x: Value, y: Value) -> torch.Tensor: ...

    @abstractmethod
    def exp(self, x: Value) -> torch.Tensor: ...

    @abstractmethod
    def log(self, x: Value) -> torch.Tensor: ...

    @abstractmethod
    def sqrt(self, x: Value) -> torch.Tensor: ...

    @abstractmethod
    def function(
        self,
        name: str,
        real: Callable[..., torch.Tensor],
        *xs: Value,
        parity: Parity | None = None,
        at_zero: int | None = None,
    ) -> torch.Tensor:
        """An uninterpreted function by elements, which is `real` on real numbers.

        `parity` says that f(-x) is -f(x) or f(x); `at_zero` is f(0).  Settings of the function
        belong into its name.
        """

    @abstractmethod
    def decide(self, name: str, real: Callable[..., Any], *xs: Value) -> Any:
        """What `real` returns for real numbers: a mask, indices or a Python number."""

    @abstractmethod
    def shift(self, x: torch.Tensor) -> torch.Tensor:
        """`x`, noted as a number that programs subtract before exp, as a maximum is."""

    @abstractmethod
    def bounded(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        """`x` or `x` minus a constant along `dim`, so that exp of it does not overflow."""

    # What follows is the same for all numbers, or for most.

    def unwritten(self, shape: Sequence[int]) -> torch.Tensor:
        """Random numbers that differ from Run to Run, for memory that nobody has written."""
        return self.enter(torch.rand(tuple(shape), dtype=torch.float64, generator=_garbage))

    def subtract(self, x: Value, y: Value) -> torch.Tensor:
        return self.add(x, self.negate(y))

    def divide(self, x: Value, y: Value) -> torch.Tensor:
        return self.multiply(x, self.inverse(y))

    def rsqrt(self, x: Value) -> torch.Tensor:
        return self.inverse(self.sqrt(x))

    def power(self, x: Value, exponent: int) -> torch.Tensor:
        """x to an integer power, by squares."""
        if exponent < 0:
            return self.inverse(self.power(x, -exponent))
        result: torch.Tensor | None = None
        base = self.lift(x)
        while exponent:
            if exponent & 1:
                result = base if result is None else self.multiply(result, base)
            exponent >>= 1
            if exponent:
                base = self.square(base)
        return self.lift(torch.ones_like(base, dtype=torch.int64)) if result is None else result

    def sum(self, x: Value, dims: Dims = None, keepdim: bool = False) -> torch.Tensor:
        """The sum over `dims`; over all dimensions if it is None or empty."""
        lifted = self.lift(x)
        if lifted.ndim == 0:
            return lifted.clone()
        over = every(lifted, dims)
        return self.linear(lambda each: each.sum(over, keepdim=keepdim), lifted)

    def total(self, xs: Sequence[torch.Tensor]) -> torch.Tensor:
        """The sum of tensors of one shape."""
        return functools.reduce(self.add, xs)

    def mean(self, x: Value, dims: Dims = None, keepdim: bool = False) -> torch.Tensor:
        lifted = self.lift(x)
        count = math.prod(lifted.shape[dim] for dim in every(lifted, dims))
        return self.divide(self.sum(lifted, dims, keepdim), count)

    def where(self, mask: torch.Tensor, x: Value, y: Value) -> torch.Tensor:
        return torch.where(mask, self.lift(x), self.lift(y))

    def positive(self, x: Value) -> torch.Tensor:
        """The decision where x > 0."""
        mask: torch.Tensor = self.decide("gt", torch.gt, x, 0)
        return mask

    def sigmoid(self, x: Value) -> torch.Tensor:
        return self.inverse(self.add(1, self.exp(self.negate(x))))

    def tanh(self, x: Value) -> torch.Tensor:
        """(1 - exp(-2x)) / (1 + exp(-2x))"""
        small = self.exp(self.multiply(x, -2))
        return self.divide(self.subtract(1, small), self.add(1, small))

    def extreme(
        self, x: torch.Tensor, dims: Dims = None, keepdim: bool = False, least: bool = False
    ) -> torch.Tensor:
        """The largest element over `dims`, or the least, chosen by a decision."""
        if x.ndim == 0:
            return x.clone() if least else self.shift(x.clone())
        over = every(x, dims)
        kept = [dim for dim in range(x.ndim) if dim not in over]
        flat = x.permute(*kept, *over).reshape(*(x.shape[dim] for dim in kept), -1)
        places = self.places(flat, -1, least)
        found = flat.gather(-1, places).squeeze(-1)
        for dim in sorted(over) if keepdim else ():
            found = found.unsqueeze(dim)
        return found if least else self.shift(found)

    def places(self, x: torch.Tensor, dim: int, least: bool = False) -> torch.Tensor:
        """The decision where along `dim` the largest element is, or the least; keeps `dim`."""
        name = "argmin" if least else "argmax"
        indices: torch.Tensor = self.decide(
            name, lambda each: getattr(each, name)(dim, keepdim=True), x
        )
        return indices


def every(x: torch.Tensor, dims: Dims) -> list[int]:
    """`dims` as numbers from 0; all dimensions of `x` for None or an empty list."""
    if isinstance(dims, int):
        dims = [dims]
    if not dims:
        return list(range(x.ndim))
    return [dim % x.ndim for dim in dims] if x.ndim else []
