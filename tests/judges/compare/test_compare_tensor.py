"""A tensor is judged by its norm, by its slices, by its projection, or exactly; rounding passes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_trainsafe.core.rungs.floating import UNTHREADED
from pytest_trainsafe.core.rungs.table import rung_named
from pytest_trainsafe.judges.compare.tensors.errors import measure, norm, spread
from pytest_trainsafe.judges.compare.tensors.tensor import (
    TensorJudgement,
    allowance_by,
    judge_equal,
    judge_tensor,
)

DTYPES = ("float64", "float32", "bfloat16")


def noisy(array: np.ndarray, dtype: str, rng: np.random.Generator, times: float = 1) -> np.ndarray:
    return array * (1 + times * rung_named(dtype).epsilon * rng.uniform(-1, 1, array.shape))


def judged(
    candidate: np.ndarray, reference: np.ndarray, dtype: str = "float32", **options: Any
) -> TensorJudgement:
    """Judge by one perturbed run and one shadow of the reference."""
    rng = np.random.default_rng(7)
    others = [noisy(reference, dtype, rng), noisy(reference, dtype, rng, 0.5)]
    return judge_tensor(candidate, reference, others, dtype, **options)


def tensor(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_error_of_the_whole_tensor_is_judged_by_its_norm(dtype: str) -> None:
    reference = tensor(32, 16)
    wrong = reference + 100 * rung_named(dtype).epsilon * tensor(32, 16, seed=1)
    found = judged(wrong, reference, dtype)
    assert found.check == "norm"
    assert found.error == pytest.approx(norm(wrong - reference) / norm(reference))
    assert found.error > found.allowed > rung_named(dtype).epsilon / 8
    assert found.ratio >= found.error / found.allowed


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_an_error_in_one_slice_that_is_small_in_the_norm_is_found_in_the_slice(
    dtype: str, dim: int
) -> None:
    reference = tensor(64, 64, 64)
    wrong = reference.copy()
    np.moveaxis(wrong, dim, 0)[5] *= 1 + 3 * judged(reference, reference, dtype).allowed
    found = judged(wrong, reference, dtype)
    assert found.check == "slice"
    assert found.message == f"only index 5 of the 64 in dimension {dim} is wrong"
    assert found.error > found.allowed


def test_several_wrong_slices_are_counted_and_the_worst_named() -> None:
    reference = tensor(400, 64)
    wrong = reference.copy()
    allowed = judged(reference, reference).allowed
    wrong[3] *= 1 + 3 * allowed
    wrong[9] *= 1 + 6 * allowed
    found = judged(wrong, reference)
    assert found.message == "2 of the 400 indices in dimension 0 are wrong, the worst is 9"


def test_scale_error_hidden_by_rounding_shows_in_the_projection() -> None:
    reference = tensor(256, 256)
    found = judged(reference * 1.008, reference, "bfloat16")
    assert found.check == "projection"
    assert found.message == "on average, the values are 1.008 times the reference's"
    assert found.error == pytest.approx(0.008)
    assert judged(noisy(reference, "bfloat16", np.random.default_rng(3)), reference).ratio > 1
    assert judged(
        noisy(reference, "bfloat16", np.random.default_rng(3)), reference, "bfloat16"
    ).passed


@pytest.mark.parametrize("array", [np.arange(12).reshape(3, 4), np.eye(4, dtype=bool)])
def test_integers_and_booleans_are_compared_exactly(array: np.ndarray) -> None:
    assert judged(array.copy(), array).passed
    wrong = array.copy()
    wrong[1, 1] = not wrong[1, 1]
    found = judged(wrong, array)
    assert (found.check, found.message) == ("exact", f"1 of {array.size} values differ")
    assert found.ratio == float("inf")


def test_a_wrong_shape_is_reported() -> None:
    found = judged(tensor(4, 6), tensor(4, 5))
    shapes = "has shape [4, 6], but its reference has shape [4, 5]"
    assert (found.check, found.message) == ("shape", shapes)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_values_fail_at_any_tolerance(value: float) -> None:
    reference = tensor(4, 5)
    wrong = reference.copy()
    wrong[2, 3] = wrong[3, 0] = value
    found = judged(wrong, reference, loosened=1e9)
    assert found.check == "non-finite"
    assert found.message == "2 of 20 values are not finite, first at [2, 3]"


def test_complex_tensors_are_judged_by_real_and_imaginary_parts() -> None:
    reference = tensor(16, 16) + 1j * tensor(16, 16, seed=1)
    assert judged(noisy(reference, "float32", np.random.default_rng(2)), reference).passed
    assert judged(reference.conj(), reference).check == "norm"
    assert judged(reference * np.exp(1e-5j), reference).check == "norm"


@pytest.mark.parametrize("shape", [(0,), (0, 4), (4, 0)])
def test_tensors_without_elements_pass(shape: tuple[int, ...]) -> None:
    assert judged(np.zeros(shape), np.zeros(shape)).passed
    assert judge_tensor(np.zeros(shape), np.zeros(shape), [], "float32").passed


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensor_whose_true_value_is_zero_is_judged_by_its_noise(dtype: str) -> None:
    """A key bias has gradient zero, and rounding as its value; relative errors of it are large."""
    size = 1e3 * rung_named(dtype).epsilon
    noise = [size * tensor(64, seed=seed) for seed in range(5)]
    reference, perturbed, shadow, candidate, bug = noise
    passes = judge_tensor(candidate, reference, [perturbed, shadow], dtype)
    assert passes.passed
    assert passes.allowed > 1
    fails = judge_tensor(1000 * bug, reference, [perturbed, shadow], dtype)
    assert fails.check == "norm"


def test_a_nonzero_value_fails_if_reference_and_noise_are_exactly_zero() -> None:
    zero = np.zeros((4, 4))
    assert judge_tensor(zero, zero, [zero], "float32").passed
    found = judge_tensor(zero + 1e-30, zero, [zero], "float32")
    assert found.check == "norm"
    assert found.ratio == float("inf")


@pytest.mark.parametrize("size", [0.0, 1e-3, 1e3])
def test_judge_equal_agrees_with_judge_tensor_on_equal_values(size: float) -> None:
    reference = size * tensor(6, 5)
    others = [reference + 1e-6 * tensor(6, 5, seed=1)]
    allowed = allowance_by(reference, others, "float32", loosened=1.0, least=0.0)
    compared = judge_tensor(reference.copy(), reference, others, "float32")
    known = judge_equal(allowed, norm(reference))
    assert known.passed
    assert (known.error, known.ratio, known.rounding) == (0, 0, compared.rounding)
    assert known.allowed == pytest.approx(compared.allowed)


def test_without_measured_rounding_only_equal_bits_pass() -> None:
    reference = tensor(8)
    assert judge_tensor(reference.copy(), reference, [], "float32").passed
    wrong = reference.copy()
    wrong[3] = np.nextafter(wrong[3], 9)
    found = judge_tensor(wrong, reference, [], "float32")
    assert found.check == "exact"
    assert "no rounding was measured" in found.message
    assert 0 < found.error < 1e-15
    tiny = np.full(4, 1e-200)
    assert not judge_tensor(tiny * 2, tiny, [], "float32").passed


def test_wrong_values_whose_squares_overflow_do_not_pass() -> None:
    huge = np.full((4, 4), 1e200)
    found = judge_tensor(huge * 1.5, huge, [huge * (1 + 1e-16)], "float64")
    assert not found.passed


def test_loosened_multiplies_the_allowance() -> None:
    reference = tensor(32, 16)
    wrong = reference + 30 * rung_named("float32").epsilon * tensor(32, 16, seed=1)
    assert not judged(wrong, reference).passed
    found = judged(wrong, reference, loosened=10)
    assert found.passed
    assert found.allowed == pytest.approx(10 * judged(wrong, reference).allowed)


@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (2, 3, 4), (1, 9), (9, 1), (300, 400)])
def test_measure_returns_the_norms_and_the_projection_of_the_difference(
    shape: tuple[int, ...],
) -> None:
    value, reference = tensor(*shape), tensor(*shape, seed=1)
    value, reference = np.asarray(value), np.asarray(reference)
    found = measure(value, reference)
    difference = value - reference
    assert found.norm == pytest.approx(np.linalg.norm(difference.ravel()))
    assert found.along == pytest.approx((difference * reference).sum() / (reference**2).sum())
    own = spread(reference)
    assert own.power == pytest.approx((reference**2).sum())
    for dim in range(len(shape)):
        rows = np.moveaxis(difference, dim, 0).reshape(shape[dim], -1)
        np.testing.assert_allclose(found.slices[dim], np.linalg.norm(rows, axis=1))
        rows = np.moveaxis(reference, dim, 0).reshape(shape[dim], -1)
        np.testing.assert_allclose(own.slices[dim], np.linalg.norm(rows, axis=1))


@pytest.mark.parametrize("size", [UNTHREADED - 1, UNTHREADED, 3 * UNTHREADED + 5])
def test_the_norm_counts_each_element_once(size: int) -> None:
    """Large tensors are summed in pieces."""
    assert norm(np.ones(size, np.float32)) == pytest.approx(size**0.5, rel=1e-12)


def test_measure_gives_the_same_errors_for_a_view_and_its_copy() -> None:
    value, reference = tensor(6, 5, 4), tensor(6, 5, 4, seed=1)
    view, other = value.transpose(2, 0, 1)[:, ::2], reference.transpose(2, 0, 1)[:, ::2]
    found, expected = measure(view, other), measure(view.copy(), other.copy())
    assert found.norm == expected.norm
    for here, there in zip(found.slices, expected.slices, strict=True):
        np.testing.assert_array_equal(here, there)


shapes = st.lists(st.integers(1, 12), min_size=0, max_size=3).map(tuple)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    shape=shapes,
    seed=st.integers(0, 2**31),
    dtype=st.sampled_from(DTYPES),
    tail=st.sampled_from([1, 3, 5]),
    rows=st.booleans(),
)
def test_noise_as_large_as_the_references_own_passes_for_tensors_of_at_least_four_elements(
    shape: tuple[int, ...], seed: int, dtype: str, tail: int, rows: bool
) -> None:
    """This also holds if a few values, or a few rows, are much larger than the others."""
    rng = np.random.default_rng(seed)
    reference = np.asarray(rng.standard_normal(shape)) ** tail
    if rows and shape:
        reference *= 10.0 ** rng.integers(-4, 4, (shape[0],) + (1,) * (len(shape) - 1))
    shared = rng.standard_normal(shape) * norm(reference) / max(reference.size, 1) ** 0.5

    def run() -> np.ndarray:
        # Rounding of the values themselves, and of sums that cancelled.
        mixed = noisy(reference, dtype, rng)
        return mixed + 0.5 * rung_named(dtype).epsilon * rng.uniform(-1, 1, shape) * np.abs(shared)

    others = [run(), run()]
    found = judge_tensor(run(), reference, others, dtype)
    # For a few elements, both noise responses may be small by chance.
    assert found.passed or reference.size < 4, found


@settings(max_examples=150, deadline=None, derandomize=True)
@given(shape=shapes, seed=st.integers(0, 2**31), dtype=st.sampled_from(DTYPES))
def test_a_scale_error_of_ten_times_the_allowance_always_fails(
    shape: tuple[int, ...], seed: int, dtype: str
) -> None:
    reference = np.asarray(np.random.default_rng(seed).standard_normal(shape))
    allowed = judged(reference, reference, dtype).allowed
    assert not judged(reference * (1 + 10 * allowed), reference, dtype).passed
    assert not judged(reference * (1 - 10 * allowed), reference, dtype).passed
