"""Replicas whose gradients were scaled on some ranks only are told from other odd replicas."""

from __future__ import annotations

import pytest
import torch

from pytest_trainsafe.judge.compare.patterns.uneven import _multiple


@pytest.fixture
def gradient():
    return torch.randn(32, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def moment():
    return torch.randn(32, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("share", [0.095, -0.4])
def test_a_difference_that_is_a_multiple_of_the_gradient_is_found(gradient, moment, share):
    other = moment + share * gradient
    assert _multiple(moment, other, gradient, gradient) == pytest.approx(share)


def test_gradients_that_differ_themselves_are_another_story(gradient, moment):
    other = moment + 0.1 * gradient
    assert _multiple(moment, other, gradient, 2 * gradient) is None


def test_replicas_that_differ_otherwise_are_not_explained(gradient, moment):
    assert _multiple(moment, moment.roll(1, 0), gradient, gradient) is None
    row = moment.clone()
    row[3] += gradient[3]
    assert _multiple(moment, row, gradient, gradient) is None


def test_equal_replicas_and_empty_gradients_are_not_explained(gradient, moment):
    assert _multiple(moment, moment, gradient, gradient) is None
    nothing = torch.zeros_like(gradient)
    assert _multiple(moment, moment + 1, nothing, nothing) is None


def test_rounding_does_not_hide_it(gradient, moment):
    other = (moment + 0.1 * gradient).to(torch.bfloat16).double()
    assert _multiple(moment.to(torch.bfloat16).double(), other, gradient, gradient) is not None
