"""What a Python float in a program means: the rational or irrational number that it rounds.

1e-6 means one millionth, not the double beside it; math.sqrt(8) means the root of 8.  A double
that is close to no simple number means itself.  So two programs that write a constant differently,
as x / math.sqrt(8) and x * 8 ** -0.5, still compute the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

#: The largest product of numerator and denominator of a fraction that counts as simple.  A double
#: is by chance this close to one with probability of about 2**-18.
_SIMPLE = 1 << 30
_CLOSE = 2.0**-50
_DIGITS = 8

#: Larger numbers are no roots of simple fractions, and their powers overflow.
_LARGE = 1e50


@dataclass(frozen=True, slots=True)
class Constant:
    """The number `sign * root(fraction * pi ** pi)`, with `roots` square roots one in another."""

    fraction: Fraction
    roots: int = 0
    pi: int = 0
    sign: int = 1


@lru_cache(maxsize=4096)
def meaning(value: float) -> Constant:
    """The number that a finite Python float stands for."""
    simple = _simple(value, _CLOSE)
    if simple is not None:
        return Constant(simple)
    if abs(value) > _LARGE:  # such as the smallest float64, by which masks stand for -inf
        return Constant(Fraction(value))
    sign = -1 if value < 0 else 1
    for roots in range(3):
        for pi in (0, 1, -1):
            if roots == pi == 0:
                continue
            fraction = _simple(abs(value) ** (1 << roots) / math.pi**pi, _CLOSE * (1 << roots))
            if fraction is not None:
                return Constant(fraction, roots, pi, sign)
    return Constant(Fraction(value))


def _simple(value: float, close: float) -> Fraction | None:
    """A simple fraction, or a decimal with few digits, beside a double.

    The difference of two numbers near 1, such as 1 - 0.999 ** 2, has the error of numbers near 1.
    """
    if value == 0 or not 1e-300 < abs(value) < 1e300:
        return Fraction(0) if value == 0 else None
    exact = Fraction(value)
    digits = Fraction(f"{value:.{_DIGITS - 1}e}")
    if abs(digits - exact) <= max(close * abs(value), 2.0**-52 if abs(value) > 1e-4 else 0):
        return digits
    previous, current, above, below = (0, 1), (1, 0), exact, Fraction(1)
    while below:
        whole = above // below
        above, below = below, above - whole * below
        previous, current = (
            current,
            (
                whole * current[0] + previous[0],
                whole * current[1] + previous[1],
            ),
        )
        numerator, denominator = current
        if abs(numerator) * denominator >= _SIMPLE:
            return None
        if numerator and abs(Fraction(numerator, denominator) - exact) <= close * abs(value):
            return Fraction(numerator, denominator)
    return None
