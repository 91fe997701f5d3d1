"""Numbers that are terms: sums, products, quotients and unknown functions of unknowns.

A tensor of them holds, in float64, the numbers of terms in a table; equal terms have one number,
and the term 0 has the number 0.  Infinities are themselves.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import torch

from pytest_trainsafe.arithmetic import DecisionSource, Numbers
from pytest_trainsafe.arithmetic.constants import meaning
from pytest_trainsafe.arithmetic.numbers import Parity, Value
from pytest_trainsafe.errors import TrainsafeError

#: The kind of a term, and what it is made of: a fraction, a name, or the numbers of other terms.
Term = tuple[Any, ...]
ZERO: Term = ("number", Fraction(0))


class TooLargeError(TrainsafeError):
    """A tensor has too many elements, or there are too many terms."""


class Terms(Numbers):
    """Terms of one run; `decisions` answers what needs the order of real numbers."""

    MOST_TERMS = 300_000
    MOST_ELEMENTS = 1 << 13

    def __init__(self, decisions: DecisionSource) -> None:
        self.decisions = decisions
        self.table: list[Term] = [ZERO]
        self._numbers: dict[Term, int] = {ZERO: 0}

    def _put(self, *term: Any) -> float:
        number = self._numbers.get(term)
        if number is None:
            if len(self.table) >= self.MOST_TERMS:
                raise TooLargeError(f"more than {self.MOST_TERMS} terms")
            number = self._numbers[term] = len(self.table)
            self.table.append(term)
        return float(number)

    def _fraction(self, number: float) -> Fraction | None:
        kind, *inside = self.table[int(number)]
        return inside[0] if kind == "number" else None

    def _map(self, function: Callable[..., float], *xs: Value) -> torch.Tensor:
        """`function` of the numbers of terms, by elements; of infinities, what float64 says."""
        broadcast: Any = torch.broadcast_tensors
        lifted: list[torch.Tensor] = list(broadcast(*map(self.lift, xs)))
        if lifted[0].numel() > self.MOST_ELEMENTS:
            raise TooLargeError(f"a tensor of the shape {list(lifted[0].shape)}")
        known: dict[tuple[float, ...], float] = {}
        found = []
        for each in zip(*(x.reshape(-1).tolist() for x in lifted), strict=True):
            if each not in known:
                known[each] = function(*each)
            found.append(known[each])
        return torch.tensor(found, dtype=torch.float64).reshape(lifted[0].shape)

    def lift(self, value: Value) -> torch.Tensor:
        if not isinstance(value, torch.Tensor):
            return torch.tensor(self._constant(value), dtype=torch.float64)
        if value.dtype is torch.float64:
            return value
        whole = [self._constant(each) for each in value.to(torch.int64).reshape(-1).tolist()]
        return torch.tensor(whole, dtype=torch.float64).reshape(value.shape)

    def _constant(self, value: float) -> float:
        if not math.isfinite(value):
            return value
        if isinstance(value, int):
            return self._put("number", Fraction(int(value)))
        meant = meaning(value)
        number = self._put("number", meant.fraction)
        for _ in range(abs(meant.pi)):
            pi = self._put("unknown", "pi")
            number = self._times(number, pi if meant.pi > 0 else self._inverted(pi))
        for _ in range(meant.roots):
            number = self._root(number)
        return number if meant.sign > 0 else self._negated(number)

    def enter(self, values: torch.Tensor) -> torch.Tensor:
        """Whole numbers as themselves, and every other value as an unknown of its own."""
        values = values.to(torch.float64)
        found = [
            self._constant(int(each) if each == int(each) else each)
            if not math.isfinite(each) or each == int(each)
            else self._put("unknown", each.hex())
            for each in values.reshape(-1).tolist()
        ]
        return torch.tensor(found, dtype=torch.float64).reshape(values.shape)

    def _sum(self, terms: Sequence[float]) -> float:
        if not all(map(math.isfinite, terms)):
            return sum(each for each in terms if not math.isfinite(each))
        left = sorted(each for each in terms if each)
        constant = Fraction(0)
        kept: list[float] = []
        for each in left:
            fraction = self._fraction(each)
            if fraction is None:
                kept.append(each)
            else:
                constant += fraction
        if constant:
            kept.append(self._put("number", constant))
        if len(kept) < 2:
            return kept[0] if kept else 0.0
        return self._put("sum", *map(int, kept))

    def _times(self, x: float, y: float) -> float:
        if not (math.isfinite(x) and math.isfinite(y)):
            return math.nan
        x, y = sorted((x, y))
        a, b = self._fraction(x), self._fraction(y)
        if a is not None and b is not None:
            return self._put("number", a * b)
        if x == 0.0 or a == 1 or b == 1:
            return 0.0 if x == 0.0 else (y if a == 1 else x)
        return self._put("product", int(x), int(y))

    def _negated(self, x: float) -> float:
        return self._times(self._put("number", Fraction(-1)), x) if math.isfinite(x) else -x

    def _inverted(self, x: float) -> float:
        if not math.isfinite(x):
            return 1 / x
        fraction = self._fraction(x)
        if fraction is not None:
            return self._put("number", 1 / fraction) if fraction else math.inf
        return self._put("inverse", int(x))

    def _root(self, x: float) -> float:
        fraction = self._fraction(x)
        if fraction in (0, 1):
            return x
        return self._put("function", "sqrt", int(x))

    def add(self, x: Value, y: Value) -> torch.Tensor:
        return self._map(lambda *each: self._sum(each), x, y)

    def negate(self, x: Value) -> torch.Tensor:
        return self._map(self._negated, x)

    def multiply(self, x: Value, y: Value) -> torch.Tensor:
        return self._map(self._times, x, y)

    def square(self, x: Value) -> torch.Tensor:
        return self._map(self._squared, x)

    def _squared(self, x: float) -> float:
        if not math.isfinite(x):
            return x * x
        term = self.table[int(x)]
        return float(term[2]) if term[:2] == ("function", "sqrt") else self._times(x, x)

    def inverse(self, x: Value) -> torch.Tensor:
        return self._map(self._inverted, x)

    def linear(self, function: Callable[..., torch.Tensor], *xs: Value) -> torch.Tensor:
        """The function's matrix is found by its values for ones in single places."""
        lifted = [self.lift(each) for each in xs]
        sizes = [each.numel() for each in lifted]
        if sum(sizes) > self.MOST_ELEMENTS:
            raise TooLargeError(f"a sum of {sum(sizes)} elements")
        flat = torch.cat([each.reshape(-1) for each in lifted]).tolist()

        def of(vector: torch.Tensor) -> torch.Tensor:
            parts = torch.split_with_sizes(vector, sizes)
            shaped = (part.reshape(x.shape) for part, x in zip(parts, lifted, strict=True))
            return function(*shaped)

        order = torch.arange(1, len(flat) + 1, dtype=torch.float64)
        found = of(order)
        places = found.reshape(-1).long() - 1
        if not found.numel():
            return found
        if bool(((places >= 0) & (places < len(flat))).all()):
            drawn = torch.rand(len(flat), dtype=torch.float64)
            if torch.equal(of(drawn).reshape(-1), drawn[places]):  # It only moves elements.
                moved = [flat[place] for place in places.tolist()]
                return torch.tensor(moved, dtype=torch.float64).reshape(found.shape)
        terms: list[list[float]] = [[] for _ in range(found.numel())]
        unit = torch.zeros(len(flat), dtype=torch.float64)
        for place, number in enumerate(flat):
            if not number:
                continue
            unit[place] = 1.0
            column = of(unit).reshape(-1)
            unit[place] = 0.0
            for row in column.nonzero().reshape(-1).tolist():
                factor = self._constant(float(column[row]))
                terms[row].append(self._times(factor, number))
        total = [self._sum(each) for each in terms]
        return torch.tensor(total, dtype=torch.float64).reshape(found.shape)

    def matmul(self, x: Value, y: Value) -> torch.Tensor:
        x, y = self.lift(x), self.lift(y)
        shape = torch.matmul(torch.empty_like(x), torch.empty_like(y)).shape
        left = x.unsqueeze(0) if x.ndim == 1 else x
        right = y.unsqueeze(1) if y.ndim == 1 else y
        batch = shape[: len(shape) - (x.ndim > 1) - (y.ndim > 1)]
        left = left.expand(*batch, *left.shape[-2:]).reshape(-1, *left.shape[-2:])
        right = right.expand(*batch, *right.shape[-2:]).reshape(-1, *right.shape[-2:])
        if left.shape[0] * left.shape[1] * right.shape[2] > self.MOST_ELEMENTS:
            raise TooLargeError(f"a product of the shape {list(shape)}")
        found = [
            self._sum([self._times(a, b) for a, b in zip(row, column, strict=True)])
            for one, other in zip(left, right, strict=True)
            for row in one.tolist()
            for column in other.T.tolist()
        ]
        return torch.tensor(found, dtype=torch.float64).reshape(shape)

    def exp(self, x: Value) -> torch.Tensor:
        return self._map(self._power, x)

    def _power(self, x: float) -> float:
        if not math.isfinite(x):
            return 0.0 if x < 0 else x
        return self._constant(1) if x == 0.0 else self._put("function", "exp", int(x))

    def log(self, x: Value) -> torch.Tensor:
        return self.function("log", torch.log, x)

    def sqrt(self, x: Value) -> torch.Tensor:
        return self._map(self._root, x)

    def function(
        self,
        name: str,
        real: Callable[..., torch.Tensor],
        *xs: Value,
        parity: Parity | None = None,
        at_zero: int | None = None,
    ) -> torch.Tensor:
        def of(*each: float) -> float:
            if not all(map(math.isfinite, each)):
                return math.nan
            if at_zero is not None and each[0] == 0.0:
                return self._constant(at_zero)
            return self._put("function", name, *map(int, each))

        return self._map(of, *xs)

    def decide(self, name: str, real: Callable[..., Any], *xs: Value) -> Any:
        return self.decisions.take(name, [self.lift(each) for each in xs])

    def bounded(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        return x

    def shift(self, x: torch.Tensor) -> torch.Tensor:
        return x


@functools.lru_cache(maxsize=1)
def solver() -> Any:
    """The module z3, or None if it is not installed."""
    try:
        return importlib.import_module("z3")
    except ImportError:
        return None
