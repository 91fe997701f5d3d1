"""Noise on operations simulates rounding inside modules, and does not change exact operations."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pytest_trainsafe.core.rungs.table import rung_named
from pytest_trainsafe.judges.compare.instrument.perturb import Noise
from pytest_trainsafe.judges.compare.instrument.perturb_operations import OperationNoise, is_rounded

EPS = rung_named("float64").epsilon


def noisy(seed: int = 0) -> OperationNoise:
    return OperationNoise(Noise(EPS, seed))


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def relative(value: torch.Tensor, expected: torch.Tensor) -> float:
    return float((value - expected).norm() / expected.norm())


def test_the_result_of_an_operation_is_perturbed_by_about_one_rounding_error() -> None:
    left, right = draw(8, 8), draw(8, 8) + 1
    with noisy():
        product = left @ right
    assert 0 < relative(product, left @ right) < 2 * EPS


def test_noise_reveals_the_rounding_error_of_a_saturated_softmax() -> None:
    """The rounding error of p is large relative to 1 - p; noise on softmax's input is not."""
    scores = torch.tensor([12.0, 0.0], dtype=torch.float64)
    exact = 1 - scores.softmax(0)[0]
    with noisy():
        rest = 1 - scores.softmax(0)[0]
    assert float((rest - exact).abs() / exact) > 100 * EPS


def test_the_output_of_an_lstm_is_perturbed() -> None:
    lstm, hidden = nn.LSTM(3, 4, dtype=torch.float64).requires_grad_(False), draw(5, 1, 3)
    expected, _ = lstm(hidden)
    with noisy():
        output, _ = lstm(hidden)
    assert 0 < relative(output, expected) < 1e-13


def test_gradients_computed_under_noise_are_perturbed() -> None:
    weight = draw(4, 4).requires_grad_()
    (expected,) = torch.autograd.grad((weight @ weight).tanh().sum(), weight)
    with noisy():
        (found,) = torch.autograd.grad((weight @ weight).tanh().sum(), weight)
    assert 0 < relative(found, expected) < 1e-13


def test_the_same_operation_on_the_same_values_gets_the_same_noise() -> None:
    """Activation recomputation must compute the values that the forward computed."""
    values = draw(6)
    with noisy():
        first, again = values.exp(), values.exp()
    with noisy(seed=1):
        other = values.exp()
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(
    "exact",
    [
        lambda x: x.clone(),
        lambda x: torch.cat([x, x]),
        lambda x: x[1:],
        lambda x: x.relu(),
        lambda x: x.sort().values,
        lambda x: x.view(2, 3).t().contiguous(),
        lambda x: torch.zeros_like(x).add_(x),
        lambda x: torch.arange(4, dtype=torch.float64),
        lambda x: (x > 0).sum(),
    ],
)
def test_operations_that_copy_select_or_count_are_not_perturbed(exact) -> None:
    values = draw(6)
    with noisy():
        found = exact(values)
    assert torch.equal(found, exact(values))


def test_noise_does_not_change_the_random_numbers_of_the_program() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    with noisy():
        draw(4).exp()
        found = torch.rand(4)
    assert torch.equal(found, expected)


@pytest.mark.parametrize(
    ("name", "rounded"),
    [
        ("native_layer_norm_backward", True),
        ("_softmax_backward_data", True),
        ("threshold_backward", False),
        ("_to_copy", False),
        ("embedding", False),
    ],
)
def test_operations_that_round_are_recognised_by_name(name: str, rounded: bool) -> None:
    assert is_rounded(name) is rounded
