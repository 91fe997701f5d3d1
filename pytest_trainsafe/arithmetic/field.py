"""Arithmetic of packed tensors in the product of two prime fields.

All functions take packed tensors without infinities and broadcast like torch's.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import torch

from pytest_trainsafe.arithmetic.errors import NoInverseError
from pytest_trainsafe.arithmetic.packing import (
    BITS,
    PRIMES,
    Bits,
    bits_of,
    numbers_of,
    pack,
    rational,
    unpack,
)

Linear = Callable[..., torch.Tensor]

#: A product of two limbs has 32 bits, and float64 adds 2**20 pairs of them exactly.
_INNER = 1 << 20
_HALF = 16
_LIMB = (1 << _HALF) - 1
_FEW = 12
#: Below this many values, the time of a call counts more than that of its loop.
_SMALL = 512
_LOW = (1 << BITS) - 1
_BOTH = np.array(PRIMES).reshape(2, 1)


def reduced(integers: Bits) -> Bits:
    """The numbers that integers stand for."""
    return _joined(*(_remainder(integers, prime) for prime in PRIMES))


def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return numbers_of(sum_of(bits_of(x), bits_of(y)))


def sum_of(x: Bits, y: Bits) -> Bits:
    (a, b), (c, d) = _parts(x), _parts(y)
    return _joined(_remainder(a + c, PRIMES[0]), _remainder(b + d, PRIMES[1]))


def total_of(x: Bits, axes: int | tuple[int, ...], keepdims: bool = False) -> Bits:
    """The sum over dimensions, of at most 2**32 numbers each, contiguous as torch's is."""
    first, second = (part.sum(axis=axes, keepdims=keepdims) for part in _parts(x))
    total = _joined(_remainder(first, PRIMES[0]), _remainder(second, PRIMES[1]))
    return np.asarray(total, order="C")


def negate(x: torch.Tensor) -> torch.Tensor:
    return numbers_of(negative_of(bits_of(x)))


def negative_of(x: Bits) -> Bits:
    a, b = _parts(x)
    return _joined(_remainder(-a, PRIMES[0]), _remainder(-b, PRIMES[1]))


def multiply(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return numbers_of(product_of(bits_of(x), bits_of(y)))


def product_of(x: Bits, y: Bits) -> Bits:
    (a, b), (c, d) = _parts(x), _parts(y)
    return _joined(_remainder(a * c, PRIMES[0]), _remainder(b * d, PRIMES[1]))


def _parts(bits: Bits) -> tuple[Bits, Bits]:
    return bits >> BITS, bits & _LOW


def _joined(first: Bits, second: Bits) -> Bits:
    return first << BITS | second


def _remainder(values: Bits, prime: Any) -> Bits:
    """`values % prime`: numpy vectorises the quotient by a scalar, and not the remainder."""
    if values.size < _SMALL:
        remainders: Bits = values % prime
        return remainders
    multiples: Bits = values // prime
    multiples *= prime
    return np.subtract(values, multiples, out=multiples)


def linear(function: Linear, *tensors: torch.Tensor) -> torch.Tensor:
    """`function` of the tensors, where it sums and moves elements, at most 2**32 into one.

    It is applied to int64 tensors of residues, and its results are reduced: sum, cumsum,
    index_add, scatter_add and their like need no rule of their own.
    """
    first, second = zip(*(unpack(each) for each in tensors), strict=True)
    return pack(function(*first) % PRIMES[0], function(*second) % PRIMES[1])


def matmul(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The matrix product of tensors with at least two dimensions.

    A residue is two limbs, high * 2**16 + low.  The four products of limbs are one product of
    float64 matrices, whose sums are integers below 2**53 and hence exact in any order.
    """
    inner = x.shape[-1]
    if inner > _INNER:
        parts = [
            matmul(x[..., start : start + _INNER], y[..., start : start + _INNER, :])
            for start in range(0, inner, _INNER)
        ]
        total = parts[0]
        for part in parts[1:]:
            total = add(total, part)
        return total
    left, right = (np.stack(_parts(bits_of(each))) for each in (x, y))
    if x.ndim == y.ndim and x.shape[:-1].numel() * y.shape[-1] < _SMALL:
        return numbers_of(_joined(*_product(left, right, _BOTH.reshape(2, *(1,) * x.ndim))))
    pairs = zip(left, right, PRIMES, strict=True)
    return numbers_of(_joined(*(_product(a, b, prime) for a, b, prime in pairs)))


def _product(x: Bits, y: Bits, modulus: Any) -> Bits:
    """The matrix product of residues; its four products of limbs are one."""
    rows, columns = x.shape[-2], y.shape[-1]
    left = np.concatenate((x >> _HALF, x & _LIMB), axis=-2, dtype=np.float64)
    right = np.concatenate((y >> _HALF, y & _LIMB), axis=-1, dtype=np.float64)
    # torch's product, because numpy's has threads of its own, which nothing limits in a rank.
    products = (torch.from_numpy(left) @ torch.from_numpy(right)).numpy().astype(np.int64)
    high, low = products[..., :rows, :], products[..., rows:, :]
    upper = _remainder(high[..., :columns], modulus) << _HALF
    upper += high[..., columns:]
    upper += low[..., :columns]
    total = _remainder(upper, modulus) << _HALF
    total += low[..., columns:]
    return _remainder(total, modulus)


def power(x: Bits, exponents: tuple[int, int]) -> Bits:
    """Elements to a power > 0, one for each prime."""
    if x.size >= _SMALL:
        pairs = zip(_parts(x), exponents, PRIMES, strict=True)
        return _joined(*(_powers(base, (exponent,), prime)[0] for base, exponent, prime in pairs))
    both = np.stack(_parts(x.reshape(-1)))
    return _joined(*_powers(both, exponents, _BOTH)).reshape(x.shape)


def _powers(base: Bits, exponents: tuple[int, ...], modulus: Any) -> list[Bits]:
    """`base` to each power; of two, the first and the second row of `base` modulo its prime."""
    rows: list[Bits | None] = [None] * len(exponents)
    for place in range(max(each.bit_length() for each in exponents)):
        if place:
            base = _remainder(base * base, modulus)
        for row, exponent in enumerate(exponents):
            if exponent >> place & 1:
                factor, prime = (base, modulus) if len(rows) == 1 else (base[row], PRIMES[row])
                found = rows[row]
                rows[row] = factor if found is None else _remainder(found * factor, prime)
    return [each for each in rows if each is not None]


def inverse(x: torch.Tensor) -> torch.Tensor:
    """1 / x by elements, of x without zeros.

    Of many elements, one product is inverted for all (Montgomery's trick).  Raises NoInverseError
    if an element is zero modulo one of the primes.
    """
    return numbers_of(inverse_of(bits_of(x)))


def inverse_of(x: Bits) -> Bits:
    flat = x.reshape(-1)
    if len(flat) >= _SMALL:
        half = len(flat) // 2
        left, right, rest = flat[:half], flat[half : 2 * half], flat[2 * half :]
        both = inverse_of(product_of(left, right))
        parts = product_of(both, right), product_of(both, left), inverse_of(rest)
        return np.concatenate(parts).reshape(x.shape)
    return _joined(*_inverted(np.stack(_parts(flat)))).reshape(x.shape)


def _inverted(x: Bits) -> Bits:
    """The inverses of the residues in the two rows of `x`, modulo each prime."""
    count = x.shape[1]
    if count <= _FEW:
        rows = zip(x.tolist(), PRIMES, strict=True)
        return np.array([_inverses(row, prime) for row, prime in rows], dtype=np.int64)
    half = (count + 1) // 2  # of an odd number, the one in the middle counts twice
    left, right = x[:, :half], x[:, count - half :]
    both = _inverted(_remainder(left * right, _BOTH))
    found = np.empty_like(x)
    np.remainder(both * left, _BOTH, out=found[:, count - half :])
    np.remainder(both * right, _BOTH, out=found[:, :half])
    return found


def _inverses(values: list[int], prime: int) -> list[int]:
    """The inverses of a few residues modulo a prime, by their products from the left."""
    products = [1]
    for value in values:
        products.append(products[-1] * value % prime)
    whole = products.pop()
    if not whole:
        raise NoInverseError
    right, found = pow(whole, -1, prime), []
    for value, left in zip(reversed(values), reversed(products), strict=True):
        found.append(left * right % prime)
        right = right * value % prime
    found.reverse()
    return found


def root(x: torch.Tensor) -> torch.Tensor:
    """The square root of each element that has one; of another, the root of its negative."""
    return numbers_of(root_of(bits_of(x)))


def root_of(x: Bits) -> Bits:
    """The same of bits.

    It is x ** ((p + 1) / 4) modulo p, so root(x * y) = root(x) * root(y) and root(1 / x) =
    1 / root(x) hold always.  Each result is itself a square, because p is 7 modulo 8, so roots of
    roots exist.
    """
    return power(x, ((PRIMES[0] + 1) // 4, (PRIMES[1] + 1) // 4))


def factor(numbers: torch.Tensor, reference: torch.Tensor) -> Fraction | None:
    """The one rational number by which every element of `reference` becomes that of `numbers`.

    None if there is no such number, or if all elements of both are zero.
    """
    pairs = [
        (a, b)
        for a, b in zip(numbers.reshape(-1), reference.reshape(-1), strict=True)
        if int(a.view(torch.int64)) or int(b.view(torch.int64))
    ]
    if not pairs or any(not int(b.view(torch.int64)) for _, b in pairs):
        return None
    first, second = (torch.stack(side) for side in zip(*pairs, strict=True))
    ratios = multiply(first, inverse(second))
    return rational(ratios[0]) if bool((ratios == ratios[0]).all()) else None
