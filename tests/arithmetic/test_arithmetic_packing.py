"""Packed residues: their bits, their arithmetic, and the fractions that they stand for."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_trainsafe.arithmetic import factor, field, rational
from pytest_trainsafe.arithmetic.packing import (
    PRIMES,
    error_bound,
    pack,
    packed,
    special,
    unpack,
)

FRACTIONS = st.fractions(-100, 100, max_denominator=100)


def tensor(*values):
    return torch.stack([packed(Fraction(each)) for each in values])


def fractions(numbers):
    return [rational(each) for each in numbers.reshape(-1)]


def random_numbers(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return pack(*(torch.randint(1, prime, shape, generator=generator) for prime in PRIMES))


def test_each_modulus_is_a_prime_for_which_roots_exist():
    for prime in PRIMES:
        assert all(prime % divisor for divisor in range(2, 45000))
        assert prime < 2**31
        assert prime % 8 == 7
        small = [each for each in range(2, 74) if all(each % d for d in range(2, each))]
        assert all(pow(each, (prime - 1) // 2, prime) == 1 for each in small)
    assert PRIMES[0] != PRIMES[1]


def test_a_bound_is_that_of_both_primes_and_falls_with_more_samples():
    assert error_bound(10_000, 10**6) == pytest.approx(1e8 / (PRIMES[0] * PRIMES[1]), rel=0.01)
    assert error_bound(100_000, 10**6) > 1e-9 > error_bound(100_000, 10**6, samples=2)
    assert error_bound(0, 10**8) > 1e-9
    assert error_bound(2**31, 0) == error_bound(0, 2**40) == 1


def test_packed_numbers_are_finite_doubles_in_the_range_from_0_to_2():
    largest = pack(torch.tensor([PRIMES[0] - 1]), torch.tensor([PRIMES[1] - 1]))
    for numbers in (largest, random_numbers(100), packed(0)):
        assert bool(((numbers >= 0) & (numbers < 2)).all())
        assert special(numbers) is None
        assert pack(*unpack(numbers)).view(torch.int64).equal(numbers.view(torch.int64))


def test_doubles_outside_of_the_range_are_noticed():
    values = torch.tensor([2.0, -1.0, 1e300, float("inf"), float("-inf"), float("nan")])
    strange = special(values.double())
    assert strange is not None
    assert bool(strange.all())


@given(FRACTIONS, FRACTIONS)
def test_field_arithmetic_is_that_of_fractions(a, b):
    x, y = tensor(a), tensor(b)
    assert fractions(field.add(x, y)) == [a + b]
    assert fractions(field.multiply(x, y)) == [a * b]
    assert fractions(field.negate(x)) == [-a]
    if a:
        assert fractions(field.inverse(x)) == [1 / a]


@pytest.mark.parametrize("count", [1, 256, 257, 1000, 1025])
def test_a_number_times_its_inverse_is_one(count):
    numbers = random_numbers(count)
    assert bool((field.multiply(numbers, field.inverse(numbers)) == packed(1)).all())


def test_an_alteration_of_a_prime_is_noticed(monkeypatch):
    monkeypatch.setattr(field, "PRIMES", (PRIMES[0], PRIMES[1] - 1))
    with pytest.raises((AssertionError, ValueError)):
        test_a_number_times_its_inverse_is_one(300)


@pytest.mark.parametrize("shapes", [((2, 3), (3, 4)), ((2, 1, 2, 3), (4, 3, 2)), ((2, 0), (0, 3))])
def test_a_matrix_product_by_limbs_is_the_sum_of_products(shapes):
    x, y = (random_numbers(*shape, seed=seed) for seed, shape in enumerate(shapes))
    products = field.multiply(x.unsqueeze(-1), y.unsqueeze(-3))
    right = field.linear(lambda each: each.sum(-2), products)
    assert field.matmul(x, y).equal(right)


def test_a_long_matrix_product_is_cut_where_float64_would_round(monkeypatch):
    x, y = random_numbers(2, 10), random_numbers(10, 2, seed=1)
    right = field.matmul(x, y)
    monkeypatch.setattr(field, "_INNER", 3)
    assert field.matmul(x, y).equal(right)


def test_the_largest_residues_do_not_overflow_a_matrix_product():
    largest = packed(-1).expand(1, 4096)
    assert fractions(field.matmul(largest, largest.t())) == [4096]


def test_roots_of_fractions_have_squares_and_roots_multiply():
    values = tensor(8, Fraction(1, 8), Fraction(35, 66), 2)
    root = field.root(values)
    assert field.multiply(root, root).equal(values)
    fourth = field.root(root)
    assert field.multiply(fourth, fourth).equal(root)
    x, y = random_numbers(20), random_numbers(20, seed=1)
    assert field.multiply(field.root(x), field.root(y)).equal(field.root(field.multiply(x, y)))


def test_a_factor_between_tensors_is_found_as_a_fraction():
    x = random_numbers(3, 2)
    two_thirds = field.multiply(x, packed(Fraction(2, 3)))
    assert factor(two_thirds, x) == Fraction(2, 3)
    assert factor(x, x) == 1
    other = x.clone()
    other[0, 0] = packed(1)
    assert factor(other, x) is None
    assert factor(torch.zeros_like(x), torch.zeros_like(x)) is None


def test_a_random_number_is_no_simple_fraction():
    assert all(rational(each, 1 << 40) is None for each in random_numbers(50))
