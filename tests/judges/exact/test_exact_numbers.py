"""The factor between two tensors of exact numbers is found where one exists, and nowhere else."""

from __future__ import annotations

from fractions import Fraction

import torch

from pytest_trainsafe.arithmetic.packing import PRIMES, pack, packed
from pytest_trainsafe.judges.exact.numbers import EXACT


def numbers(*values: Fraction) -> torch.Tensor:
    return torch.stack([packed(value) for value in values])


def test_the_factor_is_that_of_all_elements() -> None:
    reference = numbers(Fraction(0), Fraction(3, 7), Fraction(-5))
    assert EXACT.factor(EXACT.scale(reference, Fraction(3, 2)), reference) == Fraction(3, 2)
    assert EXACT.factor(numbers(Fraction(0), Fraction(3, 7), Fraction(5)), reference) is None


def test_an_element_that_is_zero_modulo_one_prime_is_not_divided_by() -> None:
    """As sqrt(x * x) - x is, where the root has the sign of x modulo one prime alone."""
    half_zero = pack(torch.tensor([0]), torch.tensor([PRIMES[1] - 6]))
    reference = torch.cat((half_zero, numbers(Fraction(3, 7))))
    assert EXACT.factor(EXACT.scale(reference, Fraction(3, 2)), reference) == Fraction(3, 2)
    assert EXACT.factor(EXACT.scale(half_zero, Fraction(3, 2)), half_zero) is None
    assert EXACT.ratio(half_zero, half_zero) is None
