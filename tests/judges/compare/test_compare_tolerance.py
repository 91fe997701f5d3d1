"""The allowance grows with the measured noise responses and the user's loosening."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_trainsafe.core.rungs.table import rung_named
from pytest_trainsafe.judges.compare.tensors.allowance import Allowance, allowance
from pytest_trainsafe.judges.compare.tensors.errors import Errors, measure

DTYPES = ("float64", "float32", "bfloat16", "float16")


def response(reference: np.ndarray, size: float, seed: int = 0) -> Errors:
    noise = np.random.default_rng(seed).uniform(-1, 1, reference.shape)
    return measure(reference * (1 + size * noise), reference)


def tensor(*shape: int) -> np.ndarray:
    return np.random.default_rng(5).standard_normal(shape)


def at_most(left: Allowance, right: Allowance) -> bool:
    pairs = zip(left.slices, right.slices, strict=True)
    slices = all((one <= other * (1 + 1e-12)).all() for one, other in pairs)
    return slices and left.norm <= right.norm and left.along <= right.along * (1 + 1e-12)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    dtype=st.sampled_from(DTYPES),
    sizes=st.lists(st.floats(0, 0.1), min_size=1, max_size=3),
    more=st.floats(0, 0.1),
)
def test_another_noise_response_never_reduces_the_allowance(
    dtype: str, sizes: list[float], more: float
) -> None:
    reference = tensor(6, 5)
    responses = [response(reference, size, seed) for seed, size in enumerate(sizes)]
    added = [*responses, response(reference, more, 99)]
    assert at_most(allowance(reference, responses, dtype), allowance(reference, added, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_loosened_multiplies_every_allowance(dtype: str) -> None:
    reference = tensor(6, 5)
    responses = [response(reference, 1e-3)]
    once = allowance(reference, responses, dtype)
    thrice = allowance(reference, responses, dtype, loosened=3)
    assert thrice.norm == pytest.approx(3 * once.norm)
    assert thrice.along == pytest.approx(3 * once.along)
    for one, three in zip(once.slices, thrice.slices, strict=True):
        np.testing.assert_allclose(three, 3 * one)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_noise_response_of_zero_leaves_a_minimum_allowance(dtype: str) -> None:
    reference = tensor(64, 64)
    found = allowance(reference, [response(reference, 0)], dtype)
    least = (
        rung_named(dtype).safety
        * rung_named(dtype).floor
        * rung_named(dtype).epsilon
        * np.linalg.norm(reference)
    )
    assert found.norm >= least
    assert all((each > 0).all() for each in found.slices)
    assert found.along > 0


def test_a_known_least_response_raises_the_allowance_like_a_measured_one() -> None:
    reference = tensor(64, 64)
    nothing = [response(reference, 0)]
    plain = allowance(reference, nothing, "float32")
    raised = allowance(reference, nothing, "float32", least=10 * plain.norm)
    assert raised.norm >= rung_named("float32").safety * 10 * plain.norm
    assert at_most(plain, raised)
    assert at_most(allowance(reference, nothing, "float32", least=0.0), plain)


def test_the_allowance_of_a_tensor_of_zeros_follows_the_measured_noise() -> None:
    zero = np.zeros((4, 4))
    exact = allowance(zero, [measure(zero, zero)], "float32")
    assert (exact.norm, exact.along) == (0, 0)
    noise = allowance(zero, [measure(zero + 1e-9, zero)], "float32")
    assert noise.norm >= rung_named("float32").safety * 4e-9


def test_allowance_scales_with_the_tensor() -> None:
    reference = tensor(8, 8)
    one = allowance(reference, [response(reference, 1e-5)], "float32")
    large = allowance(1e6 * reference, [response(1e6 * reference, 1e-5)], "float32")
    assert large.norm == pytest.approx(1e6 * one.norm)
    assert large.along == pytest.approx(one.along)
    np.testing.assert_allclose(large.slices[0], 1e6 * one.slices[0])


def test_a_slice_of_zeros_is_allowed_its_share_of_the_allowance_of_the_tensor() -> None:
    """Its elements may be sums that cancel only in the reference."""
    reference = tensor(16, 32)
    reference[3] = 0
    found = allowance(reference, [response(reference, 1e-5)], "float32")
    assert found.slices[0][3] >= found.norm / 16**0.5 / 2


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_allowance_is_the_response_times_the_safety_factor_and_the_fluctuation(
    dtype: str,
) -> None:
    """Of n equal elements, a norm fluctuates by 1/sqrt(n), and the norm of a slice by 3/sqrt(n)."""
    reference = np.ones((64, 16))
    wrong = np.where(np.indices(reference.shape).sum(0) % 2, 1.01, 0.99)
    found = allowance(reference, [measure(wrong, reference)], dtype)
    safety, response = rung_named(dtype).safety, 0.01 * 32
    assert found.norm == pytest.approx(safety * response * (1 + 1 / 32))
    assert found.along == pytest.approx(safety * 0.01 * 0.125 * (1 + 1 / 32))
    np.testing.assert_allclose(found.slices[0], safety * 0.04 * (1 + 3 / 4))
    np.testing.assert_allclose(found.slices[1], safety * 0.08 * (1 + 3 / 8))
