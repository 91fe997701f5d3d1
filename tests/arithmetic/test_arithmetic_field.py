"""Field arithmetic is that of Python's integers, of few elements and of many, which differ."""

import pytest
import torch

from pytest_trainsafe.arithmetic import field
from pytest_trainsafe.arithmetic.errors import NoInverseError
from pytest_trainsafe.arithmetic.packing import PRIMES, pack, unpack

SHAPES = [(), (0,), (3,), (5, 70), (700, 2)]
HALVES = tuple((prime + 1) // 4 for prime in PRIMES)


def drawn(shape, seed):
    generator = torch.Generator().manual_seed(seed)
    return pack(*(torch.randint(1, prime, shape, generator=generator) for prime in PRIMES))


def pairs(numbers):
    return list(zip(*(part.reshape(-1).tolist() for part in unpack(numbers)), strict=True))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("computed", "right"),
    [
        (field.add, lambda a, b, p, _: (a + b) % p),
        (field.multiply, lambda a, b, p, _: a * b % p),
        (lambda x, y: field.negate(x), lambda a, b, p, _: -a % p),
        (lambda x, y: field.inverse(x), lambda a, b, p, _: pow(a, -1, p)),
        (lambda x, y: field.root(x), lambda a, b, p, half: pow(a, half, p)),
    ],
    ids=["add", "multiply", "negate", "inverse", "root"],
)
def test_each_element_is_the_result_of_python_integers(shape, computed, right):
    x, y = drawn(shape, 1), drawn(shape, 2)
    result = computed(x, y)
    assert result.shape == x.shape
    for found, a, b in zip(pairs(result), pairs(x), pairs(y), strict=True):
        for each in zip(found, a, b, PRIMES, HALVES, strict=True):
            assert each[0] == right(*each[1:])


@pytest.mark.parametrize("count", [1, 3, 1000])
@pytest.mark.parametrize("which", [0, 1])
def test_a_divisor_that_is_zero_modulo_one_prime_is_named(count, which):
    residues = [torch.ones(count, dtype=torch.int64) for _ in PRIMES]
    residues[which][count // 2] = 0
    with pytest.raises(NoInverseError, match="draw another sample"):
        field.inverse(pack(*residues))


def test_a_transposed_and_an_expanded_tensor_are_computed_by_place():
    x, y = drawn((4, 3), 1), drawn((3,), 2)
    right = field.multiply(x.t().contiguous(), y.unsqueeze(1).repeat(1, 4))
    assert torch.equal(field.multiply(x.t(), y.unsqueeze(1).expand(3, 4)), right)
