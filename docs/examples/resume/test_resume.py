"""pytest docs/examples/resume, or from a copy of this folder: pytest"""

from __future__ import annotations

from typing import Any

import pytest

from pytest_trainsafe import TrainsafeFailure, assert_resumable

from .resumed import train


@pytest.mark.trainsafe(train, dp=[2])
def test_it_goes_on_as_if_it_was_never_interrupted(candidate_trace: Any) -> None:
    assert_resumable(candidate_trace, at_step=4, steps=7)


@pytest.mark.trainsafe(train, dp=[2], args={"forgotten": "the random numbers"})
def test_random_numbers_that_are_not_loaded_are_found(candidate_trace: Any) -> None:
    with pytest.raises(TrainsafeFailure, match="resume:rng"):
        assert_resumable(candidate_trace, at_step=4, steps=7)
