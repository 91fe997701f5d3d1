"""Arithmetic of packed tensors in the product of two prime fields.

All functions take packed tensors without infinities and broadcast like torch's.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import torch

from pytest_trainsafe.arithmetic.packing import BITS, PRIMES, pack, rational, unpack

Linear = Callable[..., torch.Tensor]

#: A product of two limbs has 32 bits, and float64 adds 2**20 pairs of them exactly.
_INNER = 1 << 20
_HALF = 16
_FEW = 64


def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    (a, b), (c, d) = unpack(x), unpack(y)
    return pack((a + c) % PRIMES[0], (b + d) % PRIMES[1])


def negate(x: torch.Tensor) -> torch.Tensor:
    a, b = unpack(x)
    return pack((-a) % PRIMES[0], (-b) % PRIMES[1])


def multiply(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    (a, b), (c, d) = unpack(x), unpack(y)
    return pack((a * c) % PRIMES[0], (b * d) % PRIMES[1])


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
    products = (
        _combined(_limb_products(a, b), x.shape[-2], y.shape[-1], prime)
        for a, b, prime in zip(unpack(x), unpack(y), PRIMES, strict=True)
    )
    return pack(*products)


def _limb_products(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    mask = (1 << _HALF) - 1
    left = torch.cat((a >> _HALF, a & mask), dim=-2).to(torch.float64)
    right = torch.cat((b >> _HALF, b & mask), dim=-1).to(torch.float64)
    return (left @ right).to(torch.int64)


def _combined(products: torch.Tensor, rows: int, columns: int, prime: int) -> torch.Tensor:
    high, low = products[..., :rows, :], products[..., rows:, :]
    middle = (high[..., columns:] + low[..., :columns]) % prime
    upper = (high[..., :columns] % prime << _HALF) + middle
    return ((upper % prime << _HALF) + low[..., columns:] % prime) % prime


def power(x: torch.Tensor, exponents: tuple[int, int]) -> torch.Tensor:
    """Elements to a power >= 0, one for each prime."""
    parts = []
    for base, exponent, prime in zip(unpack(x), exponents, PRIMES, strict=True):
        result = torch.ones_like(base)
        while exponent:
            if exponent & 1:
                result = result * base % prime
            exponent >>= 1
            if exponent:
                base = base * base % prime
        parts.append(result)
    return pack(*parts)


def inverse(x: torch.Tensor) -> torch.Tensor:
    """1 / x by elements, of x without zeros.

    Of many elements, one product of two is inverted for both (Montgomery's trick).
    """
    if x.numel() <= _FEW:
        pairs = [
            (pow(bits >> BITS, -1, PRIMES[0]) << BITS)
            | pow(bits & ((1 << BITS) - 1), -1, PRIMES[1])
            for bits in x.reshape(-1).view(torch.int64).tolist()
        ]
        return torch.tensor(pairs, dtype=torch.int64, device=x.device).view_as(x).view(x.dtype)
    flat = x.reshape(-1)
    half = flat.numel() // 2
    left, right, rest = flat[:half], flat[half : 2 * half], flat[2 * half :]
    both = inverse(multiply(left, right))
    return torch.cat((multiply(both, right), multiply(both, left), inverse(rest))).view_as(x)


def root(x: torch.Tensor) -> torch.Tensor:
    """The square root of each element that has one; of another, the root of its negative.

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
