"""Packs two residues into the bits of a float64, so that an ordinary tensor carries exact numbers.

An exact number is a pair of residues, modulo `PRIMES`.  Both primes are below 2**31, so the pair
has 62 bits; they are the low bits of a float64.  The two highest bits, the sign and the highest
bit of the exponent, are 0.  So every exact number is a finite double in [0, 2), and operators that
only move numbers, such as views, copies, indexing, buckets and sends, work on it unmodified.
Arithmetic on the double, and the order of doubles, mean nothing.

Infinities and NaN remain the real ones: each has one of the two highest bits.

**Probability of a false equality.**  `error_bound` bounds how probable it is that one element is
the same number on both sides though the sides compute different functions of the initial values.
Initial values and functions are keyed hashes, whose residues modulo the two primes are taken as
independent and uniform.  docs/prove.md derives the bound.  In short:

- Follow the difference from where the two sides part to the element.  Modulo one prime p, a
  product, quotient or function in this row loses it with probability 1 / p, where a number that is
  not zero as a function is zero modulo p; so d of them in a row lose it with at most d / p.
  d is at most the number of all that both sides compute on all ranks, `multiplications`.
- The primes are independent, so both lose it with at most (d / p1) * (d / p2).
- Of n hashed arguments, two different ones agree modulo both primes with n**2 / 2 / (p1 * p2).
  One such pair changes nothing, unless it is the pair in which the two sides differ, which the row
  counts.  Two pairs at once are counted as an error: the square of this probability.

k samples err with the k-th power, because a sample changes every hash.

**Signs below roots.**  The root of a square is its argument up to a sign that is a property of
the residue, not of the real number (`field.root`).  Programs that differ only by such a sign, as
sqrt(x * x) from x, agree with probability 1/4 for each element and sample, which the bound does
not cover.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils import dlpack

#: The bits of packed numbers.  Computing with them in numpy takes a fraction of the time of torch's
#: calls on small tensors.
Bits = npt.NDArray[np.int64]

#: Two primes below 2**31, each 7 modulo 8, for which every prime up to 73 is a square.  So each
#: positive rational with small factors has an exact root, and a negative one has none.
PRIMES = (2017348511, 1980242879)

BITS = 31

_LOW = (1 << BITS) - 1

#: The attribute of a tensor whose memory is an array's: its bits, none of an infinity or NaN.
_BITS = "_trainsafe_residues"


def error_bound(multiplications: int, hashed: int, samples: int = 1) -> float:
    """How probable it is that different functions are found equal in `samples` pairs of Runs.

    `multiplications` and `hashed` are how many products, quotients, roots and functions, and how
    many values of functions, both sides compute on all ranks.
    """
    field = math.prod(PRIMES)
    one = multiplications**2 / field + (hashed**2 / 2 / field) ** 2
    return float(min(one, 1.0) ** samples)


def pack(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """The float64 tensor of two int64 tensors of residues, modulo the first and second prime."""
    return ((first << BITS) | second).view(torch.float64)


def unpack(numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The two int64 tensors of residues of a packed tensor; `numbers` must be finite."""
    bits = numbers.view(torch.int64)
    return bits >> BITS, bits & _LOW


class _Lent:
    """Shows numpy the memory of a tensor, which torch may still resize, as not after `numpy()`."""

    __slots__ = ("_tensor",)

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __dlpack__(self, **_: object) -> object:
        return dlpack.to_dlpack(self._tensor)  # type: ignore[attr-defined]

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0  # the CPU


def bits_of(numbers: torch.Tensor) -> Bits:
    """The bits of numbers, which must only be read, and only while the numbers do not change."""
    known: Bits | None = getattr(numbers, _BITS, None)
    if known is not None:
        return known
    if not (numbers.is_cpu and numbers.is_contiguous()) or numbers.is_neg():
        numbers = numbers.detach().clone().cpu()
    lent: Any = _Lent(numbers)
    return np.from_dlpack(lent).view(np.int64)


def numbers_of(residues: Bits) -> torch.Tensor:
    """The packed tensor of bits without infinities, which shares their memory.

    torch does not resize memory of numpy: what a program receives must be a copy (`in_torch`).
    """
    bits = np.asarray(residues)
    numbers = torch.from_numpy(bits.view(np.float64))
    setattr(numbers, _BITS, bits)
    return numbers


def in_torch(numbers: torch.Tensor) -> torch.Tensor:
    """The same numbers in memory of torch's, where they may be in numpy's."""
    return numbers if numbers.untyped_storage().resizable() else numbers.clone()


def residues_in(*numbers: torch.Tensor) -> list[Bits] | None:
    """The bits of numbers, or None if one of these is infinite or NaN."""
    found = []
    for each in numbers:
        bits: Bits | None = getattr(each, _BITS, None)  # never of an infinity
        if bits is None:
            bits = bits_of(each)
            if has_special(bits):
                return None
        found.append(bits)
    return found


def has_special(bits: Bits) -> bool:
    """Whether a number is infinite or NaN."""
    return bool(int(np.bitwise_or.reduce(bits, axis=None)) >> 2 * BITS)


def special(numbers: torch.Tensor) -> torch.Tensor | None:
    """Where `numbers` are infinite or NaN, or None if all are residues."""
    if residues_in(numbers) is not None:
        return None
    return numbers.detach().view(torch.int64) >> (2 * BITS) != 0


@lru_cache(maxsize=4096)
def residues_of(value: Fraction | int) -> tuple[int, int]:
    """The residues of a rational number, as Python integers."""
    value = Fraction(value)
    first, second = (
        value.numerator * pow(value.denominator, -1, prime) % prime for prime in PRIMES
    )
    return first, second


def packed(value: Fraction | int) -> torch.Tensor:
    """A rational number as a packed tensor without dimensions."""
    first, second = residues_of(value)
    return torch.tensor((first << BITS) | second).view(torch.float64)


def rational(number: torch.Tensor, size: int = 1 << 44) -> Fraction | None:
    """The simplest fraction with these residues, if numerator times denominator is below `size`.

    `number` has one element.  A random number has such a fraction with probability of about
    size / 2**61.  Euclid's algorithm meets all fractions whose parts are below the root of half
    the modulus (Wang, "A p-adic algorithm for univariate partial fractions", 1981).
    """
    bits = int(number.view(torch.int64))
    if bits >> (2 * BITS):
        return None
    first, second = bits >> BITS, bits & _LOW
    modulus = PRIMES[0] * PRIMES[1]
    value = first + PRIMES[0] * ((second - first) * pow(PRIMES[0], -1, PRIMES[1]) % PRIMES[1])
    best: Fraction | None = Fraction(0) if value == 0 else None
    least = size
    previous, current, above, below = modulus, value, 0, 1
    while current:
        if current * abs(below) < least:
            least, best = current * abs(below), Fraction(current, below)
        quotient = previous // current
        previous, current = current, previous - quotient * current
        above, below = below, above - quotient * below
    return best
