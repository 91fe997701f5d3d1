"""`deterministic_runtime` makes computations repeatable, and restores all settings and states."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import deterministic

from pytest_trainsafe import deterministic_runtime
from pytest_trainsafe.errors import ArgumentError, ArgumentTypeError


def _settings():
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
        torch.backends.cudnn.deterministic,
        torch.backends.cudnn.benchmark,
        os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
    )


def _states():
    numpy: Any = np.random.get_state()
    return random.getstate(), numpy[1].tolist(), numpy[2], torch.get_rng_state().tolist()


def _draws():
    return random.random(), np.random.random(), torch.rand(3).tolist(), torch.empty(3).tolist()


def test_regions_of_the_same_seed_draw_equal_numbers_and_fill_memory_with_nan():
    with deterministic_runtime(7):
        first = _draws()
    random.random(), np.random.random(), torch.rand(1)
    with deterministic_runtime(7):
        second = _draws()

    # Memory is filled with NaN, which is not equal to itself.
    assert repr(first) == repr(second)
    assert "nan" in repr(first[3])


def test_regions_of_different_seeds_draw_different_numbers():
    with deterministic_runtime(7):
        first = _draws()
    with deterministic_runtime(8):
        second = _draws()

    assert all(one != other for one, other in zip(first[:3], second[:3], strict=True))


def test_settings_and_generator_states_are_restored_after_an_error(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "of the user's own")
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    monkeypatch.setattr(deterministic, "fill_uninitialized_memory", False)
    settings, states = _settings(), _states()

    inside = []

    def fails():
        inside.append(_settings())
        raise KeyError

    with pytest.raises(KeyError), deterministic_runtime():
        fails()

    assert inside[0] == (True, False, True, True, False, ":4096:8")
    assert (_settings(), _states()) == (settings, states)


def test_an_operator_that_torch_cannot_make_deterministic_raises_or_warns():
    def put():
        torch.zeros(4).put_(torch.tensor([1]), torch.ones(1))

    with deterministic_runtime(), pytest.raises(RuntimeError, match="put_"):
        put()
    with deterministic_runtime(warn_only=True), pytest.warns(UserWarning, match="put_"):
        put()
    put()


@pytest.mark.parametrize("seed", [None, 1.5, "1", True])
def test_the_seed_must_be_an_integer(seed):
    with pytest.raises(ArgumentTypeError, match="must be an integer"), deterministic_runtime(seed):
        pass


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_a_seed_out_of_range_is_refused(seed):
    with pytest.raises(ArgumentError, match="from 0 to"), deterministic_runtime(seed):
        pass
