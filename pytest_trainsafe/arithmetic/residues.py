"""Exact numbers: the version of `Numbers` that proves, with what is known of exp, log and roots."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from pytest_trainsafe.arithmetic import field
from pytest_trainsafe.arithmetic.constants import meaning
from pytest_trainsafe.arithmetic.decisions import DecisionSource, Undecided
from pytest_trainsafe.arithmetic.hashing import Hashes
from pytest_trainsafe.arithmetic.images import Images, Noted
from pytest_trainsafe.arithmetic.numbers import Dims, Numbers, Parity, Value, every
from pytest_trainsafe.arithmetic.packing import (
    BITS,
    PRIMES,
    Bits,
    bits_of,
    numbers_of,
    pack,
    packed,
    residues_in,
    special,
)

#: The largest number of norms that are scaled at once.  Adam divides the root of each element by
#: a constant, but squares none of them, so their squares are not worth the time.
_NORMS = 1024
_PER_1024 = bits_of(field.inverse(packed(1024)))
_ONE = bits_of(packed(1)).copy()
_garbage = np.random.default_rng()
_HALF = PRIMES[0] // 2
_LOW = (1 << BITS) - 1


class Residues(Numbers):
    """Exact numbers of one seed; `decisions` answers what needs the order of real numbers.

    What is known beside field arithmetic:

    - exp(0) = 1, exp(-x) = 1 / exp(x), exp(log(x)) = x, and exp(x - m) = exp(x) / exp(m) where m
      is a `shift` or a logarithm, as in softmax, log-sum-exp and their online forms;
    - m + log(sum(exp(x - m))) = log(sum(exp(x))) for such an m, so log-sum-exp may take any maximum
      as its shift, those of parts, or none;
    - sqrt(x * y) = sqrt(x) * sqrt(y), sqrt(1 / x) = 1 / sqrt(x), and sqrt(x) ** 2 = x;
    - (c * sqrt(x)) ** 2 = c ** 2 * x for a constant c and few x, such as norms;
    - a random number stands for pi.

    Not known, so equal programs may be found different:

    - log(x * y) = log(x) + log(y) for other x and y;
    - exp(c * (x - m)) = exp(c * x) / exp(c * m): scores must be scaled before the shift;
    - the sign of an infinity that comes from a residue: x / 0 is a NaN;
    - sqrt(x) ** 2 = x where another process took the root.
    """

    def __init__(self, seed: int = 0, decisions: DecisionSource | None = None) -> None:
        self.seed = seed
        self.decisions: DecisionSource = decisions or Undecided()
        self.hashes = Hashes(seed)
        #: How many products, quotients, roots and functions were computed: each may add to the
        #: degree of what follows (`packing.error_bound`).
        self.multiplications = 0
        self._noted = Noted()  # in any of the next three tables
        self._powers = Images(self._noted)  # the exponential of a number
        self._shifts = Images(self._noted)  # the term of a sum whose exponential is noted
        self._scaled = Images(self._noted)  # the term whose exponential scales a number
        self._roots = Noted()
        self._squares = Images(self._roots)  # the square of a root
        self._constants: dict[tuple[type, float], torch.Tensor] = {}
        self._inverses: dict[float, torch.Tensor] = {}
        # A square, so that the root of two over pi has a square.
        self._pi = field.multiply(*(self.hashes("pi", packed(1)),) * 2)

    def lift(self, value: Value) -> torch.Tensor:
        if not isinstance(value, torch.Tensor):
            return self._constant(value)
        if value.dtype is torch.float64:
            return value
        assert not value.is_floating_point(), value.dtype
        whole = value.to(torch.int64)
        return pack(whole % PRIMES[0], whole % PRIMES[1])

    def _constant(self, value: float) -> torch.Tensor:
        """A number in memory of numpy's, so that a program never receives it, but a copy."""
        if not isinstance(value, int) and not math.isfinite(value):
            return torch.tensor(value, dtype=torch.float64)
        known = self._constants.get((type(value), value))
        if known is None:
            known = numbers_of(bits_of(self._meant(value)).copy())
            self._constants[type(value), value] = known
        return known

    def _meant(self, value: float) -> torch.Tensor:
        if isinstance(value, int):
            return packed(int(value))
        meant = meaning(value)
        number = packed(meant.fraction)
        for _ in range(abs(meant.pi)):
            number = field.multiply(number, self._pi if meant.pi > 0 else field.inverse(self._pi))
        for _ in range(meant.roots):
            number = self.sqrt(number)
        return number if meant.sign > 0 else field.negate(number)

    def enter(self, values: torch.Tensor) -> torch.Tensor:
        """Multiples of 1/1024 below 1024 as themselves; of other finite values, a hash of the bits.

        So zeros, ones, masks and one-hot rows keep their meaning, and all other values are
        random numbers that depend on nothing but the value.
        """
        values = values.to(torch.float64)
        bits = bits_of(values)
        doubles = bits.view(np.float64)
        simple = np.abs(doubles) < 1024  # not a NaN
        scaled = np.where(simple, doubles, 0.5) * 1024
        simple &= scaled == np.rint(scaled)
        entered = self.hashes.of("entered", bits)
        if simple.any():
            whole = scaled.astype(np.int64)
            exact = field.product_of(field.reduced(whole), _PER_1024)
            entered = np.where(simple, exact, entered)
        finite = np.isfinite(doubles)
        if not finite.all():
            return torch.from_numpy(np.where(finite, entered, bits).view(np.float64))
        return numbers_of(entered)

    def unwritten(self, shape: Sequence[int]) -> torch.Tensor:
        first, second = (_garbage.integers(prime, size=tuple(shape)) for prime in PRIMES)
        self.hashes.count += first.size  # any two may agree by chance, as two hashes may
        return numbers_of(np.asarray(first) << BITS | second)

    def add(self, x: Value, y: Value) -> torch.Tensor:
        x, y = self.lift(x), self.lift(y)
        bits = residues_in(x, y)
        if bits is None:
            return _with_infinities(torch.add, self._add, (x, y))
        return self._add(x, y) if self._noted.may_have(*bits) else numbers_of(field.sum_of(*bits))

    def _add(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The sum of residues, with exp(x + y) = exp(x) * exp(y) where one of them is noted."""
        total = field.add(x, y)
        if self._powers:
            self._note_sum(x, y, total)
        for each in (x, y) if self._scaled else ():
            found = self._scaled.find(each)
            if found is not None:
                known, shifts = (part.expand(total.shape) for part in found)
                self._scaled.note(total[known], shifts[known])
        return total

    def subtract(self, x: Value, y: Value) -> torch.Tensor:
        x, y = self.lift(x), self.lift(y)
        bits = residues_in(x, y)
        if bits is None or self._noted.may_have(bits[1]):
            return super().subtract(x, y)
        minus = field.negative_of(bits[1])
        if self._noted.may_have(bits[0], minus):
            return self._add(x, numbers_of(minus))
        return numbers_of(field.sum_of(bits[0], minus))

    def total(self, xs: Sequence[torch.Tensor]) -> torch.Tensor:
        bits = residues_in(*xs)
        if bits is None or self._noted.may_have(whole := np.stack(bits)):
            return super().total(xs)
        return numbers_of(field.total_of(whole, 0))

    def _note_sum(self, x: torch.Tensor, y: torch.Tensor, total: torch.Tensor) -> None:
        known: torch.Tensor | None = None
        for term in (y, x):  # of x - m, the term -m first
            found = self._powers.find(term)
            if found is not None:
                mask = found[0].expand(total.shape)
                self._shifts.note(total[mask], term.expand(total.shape)[mask])
                known = mask if known is None else known | mask
        if known is None:
            return
        self.multiplications += 1
        left, right = (self.exp(each.expand(total.shape)[known]) for each in (x, y))
        self._powers.note(total[known], field.multiply(left, right))

    def negate(self, x: Value) -> torch.Tensor:
        x = self.lift(x)
        bits = residues_in(x)
        if bits is None:
            return _with_infinities(torch.neg, self.negate, (x,))
        result = numbers_of(field.negative_of(bits[0]))
        if (known := self._powers.find(x, bits[0])) is not None:
            self.multiplications += 1
            self._powers.note(result[known[0]], field.inverse(known[1][known[0]]))
        return result

    def multiply(self, x: Value, y: Value) -> torch.Tensor:
        self.multiplications += 1
        if x is y:
            return self.square(x)
        if not isinstance(y, torch.Tensor):
            return self._times(self.lift(x), self.lift(y))
        if not isinstance(x, torch.Tensor):
            return self._times(self.lift(y), self.lift(x))
        x, y = self.lift(x), self.lift(y)
        return self._product(x, y, residues_in(x, y))

    def _product(
        self, x: torch.Tensor, y: torch.Tensor, bits: Sequence[Bits] | None
    ) -> torch.Tensor:
        """The product; `bits` are those of both, or None if one has an infinity or a NaN."""
        if bits is None:
            return _with_infinities(torch.mul, field.multiply, (x, y), signs=False)
        product = numbers_of(field.product_of(*bits))
        if x.shape == y.shape and self._roots.may_have(bits[0]) and bool((same := x == y).any()):
            return torch.where(same, self.square(x), product)
        return product

    def _times(self, x: torch.Tensor, constant: torch.Tensor) -> torch.Tensor:
        """The product by a constant, with (c * sqrt(x)) ** 2 = c ** 2 * x for few x.

        DTensor so divides a norm by sqrt(n), where n ranks are to add up its square.
        """
        bits = residues_in(x, constant)
        product = self._product(x, constant, bits)
        if x.numel() > _NORMS:
            return product
        known = self._squares.find(x, bits[0] if bits else None)
        if known is not None and residues_in(constant) is not None:
            squares = field.multiply(known[1][known[0]], self.square(constant))
            self._squares.note(product[known[0]], squares)
        return product

    def square(self, x: Value) -> torch.Tensor:
        self.multiplications += 1
        x = self.lift(x)
        bits = residues_in(x)
        if bits is None:
            return _with_infinities(torch.square, self.square, (x,))
        product = numbers_of(field.product_of(*bits, *bits))
        known = self._squares.find(x, bits[0])
        return product if known is None else torch.where(known[0], known[1], product)

    def inverse(self, x: Value) -> torch.Tensor:
        self.multiplications += 1
        x = self.lift(x)
        bits = residues_in(x)
        if bits is not None and bits[0].all():
            result = numbers_of(field.inverse_of(bits[0]))
            known = self._squares.find(x, bits[0])
            if known is not None:
                self._squares.note(result[known[0]], field.inverse(known[1][known[0]]))
            return result
        strange = special(x)
        zero = x == 0 if strange is None else (x == 0) | strange
        result = field.inverse(torch.where(zero, packed(1), x))
        return torch.where(zero, x.reciprocal(), result)

    def divide(self, x: Value, y: Value) -> torch.Tensor:
        if isinstance(y, torch.Tensor) or not y or not math.isfinite(y):
            return super().divide(x, y)
        found = self._inverses.get(y)  # as of a count or a learning rate, by which many divide
        if found is None:
            found = self._inverses[y] = self.inverse(y)
        self.multiplications += 1
        return self._times(self.lift(x), found)

    def linear(self, function: Callable[..., torch.Tensor], *xs: Value) -> torch.Tensor:
        lifted = tuple(map(self.lift, xs))
        if residues_in(*lifted) is None:
            return _with_infinities(function, lambda *each: field.linear(function, *each), lifted)
        return field.linear(function, *lifted)

    def matmul(self, x: Value, y: Value) -> torch.Tensor:
        self.multiplications += 1
        x, y = self.lift(x), self.lift(y)
        if residues_in(x, y) is None:
            return _with_infinities(torch.matmul, field.matmul, (x, y), signs=False)
        return field.matmul(x, y)

    def exp(self, x: Value) -> torch.Tensor:
        self.multiplications += 1
        x = self.lift(x)
        found = residues_in(x)
        if found is None:
            return _with_infinities(torch.exp, self.exp, (x,))
        (bits,) = found
        upper = bits >> BITS > _HALF
        hashed = self.hashes.of("exp", np.where(upper, field.negative_of(bits), bits))
        if upper.any():
            hashed[upper] = field.inverse_of(_not_zero(hashed[upper]))
        result = numbers_of(np.where(bits == 0, _ONE, hashed))
        known = self._powers.find(x, bits)
        if known is not None:
            result = torch.where(known[0], known[1], result)
            shifted = self._shifts.find(x, bits)
            if shifted is not None:
                self._scaled.note(result[shifted[0]], shifted[1][shifted[0]])
        return result

    def sum(self, x: Value, dims: Dims = None, keepdim: bool = False) -> torch.Tensor:
        """The sum; if a term is scaled by the exponential of a number, so is the sum taken to be.

        Nothing false follows: log(y) = log(y / exp(m)) + m for any m.
        """
        x = self.lift(x)
        terms = residues_in(x) if x.ndim else None
        if terms is None:
            total = super().sum(x, dims, keepdim)
        else:
            total = numbers_of(field.total_of(terms[0], tuple(every(x, dims)), keepdim))
        found = self._scaled.find(x) if x.ndim else None
        if found is not None:
            bits = torch.where(found[0], found[1].view(torch.int64), 0)
            chosen = bits.amax(every(x, dims), keepdim=keepdim)
            known = chosen != 0
            self._scaled.note(total[known], chosen[known].view(torch.float64))
        return total

    def log(self, x: Value) -> torch.Tensor:
        self.multiplications += 1
        x = self.lift(x)
        if residues_in(x) is None:
            return _with_infinities(torch.log, self.log, (x,), neutral=1.0)
        found = self._scaled.find(x)
        whole, shift = x, torch.zeros_like(x)
        if found is not None:
            shift = torch.where(*found, 0.0)
            scale = torch.where(found[0], self.exp(field.negate(shift)), packed(1))
            self.multiplications += 1
            whole = field.multiply(x, scale)
        result = torch.where(whole == packed(1), packed(0), self.hashes("log", whole))
        result = torch.where(x == 0, -math.inf, field.add(result, shift))
        self._powers.note(result[x != 0], x[x != 0])
        return result

    def sqrt(self, x: Value) -> torch.Tensor:
        self.multiplications += 1
        x = self.lift(x)
        found = residues_in(x)
        if found is None:
            return _with_infinities(torch.sqrt, self.sqrt, (x,))
        (bits,) = found
        roots = field.root_of(bits)
        wrong = field.product_of(roots, roots) != bits
        if wrong.any():
            self._squares.note_bits(roots[wrong], bits[wrong])
        return numbers_of(roots)

    def function(
        self,
        name: str,
        real: Callable[..., torch.Tensor],
        *xs: Value,
        parity: Parity | None = None,
        at_zero: int | None = None,
    ) -> torch.Tensor:
        self.multiplications += 1
        lifted = tuple(map(self.lift, xs))
        bits = residues_in(*lifted)
        if bits is None:
            return _with_infinities(
                lambda *each: functools.reduce(torch.add, each),
                lambda *each: self.function(name, real, *each, parity=parity, at_zero=at_zero),
                lifted,
                signs=False,
            )
        first, *others = bits
        upper = first >> BITS > _HALF
        given = first if parity is None else np.where(upper, field.negative_of(first), first)
        result = self.hashes.of(name, given, *others)
        if parity == "odd":
            result = np.where(upper, field.negative_of(result), result)
        if at_zero is not None:
            result = np.where(given == 0, bits_of(packed(at_zero)), result)
        return numbers_of(result)

    def decide(self, name: str, real: Callable[..., Any], *xs: Value) -> Any:
        return self.decisions.take(name, [self.lift(each) for each in xs])

    def bounded(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        return x

    def shift(self, x: torch.Tensor) -> torch.Tensor:
        strange = special(x)
        finite = x if strange is None else x[~strange]
        self._powers.note(finite, self.exp(finite))
        return x


def _not_zero(x: Bits) -> Bits:
    """`x` with ones for zeros, which a hash is with probability 2**-30 in each residue."""
    first, second = x >> BITS, x & _LOW
    return np.where(first == 0, 1, first) << BITS | np.where(second == 0, 1, second)


def _with_infinities(
    real: Callable[..., torch.Tensor],
    exact: Callable[..., torch.Tensor],
    xs: tuple[torch.Tensor, ...],
    neutral: float = 0.0,
    signs: bool = True,
) -> torch.Tensor:
    """`exact` of the finite elements, and `real` wherever an infinity or a NaN takes part.

    Finite elements count as `neutral` for `real`, which must hand on a NaN; the other elements
    count as zero for `exact`.  With `signs` false, what an infinity touches is a NaN, because its
    sign would depend on the sign of a residue, which is not known.
    """
    masks = [x.view(torch.int64) >> 62 != 0 for x in xs]
    nans = [torch.where(mask, math.nan, neutral) for mask in masks]
    touched = real(*nans).isnan()
    outcome = real(*(x.where(mask, neutral) for x, mask in zip(xs, masks, strict=True)))
    finite = exact(*(x.where(~mask, 0.0) for x, mask in zip(xs, masks, strict=True)))
    return torch.where(touched, outcome if signs else math.nan, finite)
