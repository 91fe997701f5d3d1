"""pytest docs/examples/per_example, or from a copy of this folder: pytest"""

from __future__ import annotations

from typing import Any

import pytest

from pytest_trainsafe import TrainsafeFailure, assert_trainsafe

from .program import train


@pytest.mark.trainsafe(train, dp=[2])
def test_data_parallel_dropout_is_that_of_one_device(
    candidate_trace: Any, reference_trace: Any
) -> None:
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(train, tp=[2], sp=[False, True])
def test_tensor_parallel_dropout_is_that_of_one_device(
    candidate_trace: Any, reference_trace: Any
) -> None:
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(train, cp=[2])
def test_context_parallel_dropout_is_that_of_one_device(
    candidate_trace: Any, reference_trace: Any
) -> None:
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(train, dp=[2], args={"own_generator": True})
def test_dropout_of_the_ranks_generators_is_found(
    candidate_trace: Any, reference_trace: Any
) -> None:
    with pytest.raises(TrainsafeFailure, match="draws its mask from a stream of its own"):
        assert_trainsafe(candidate_trace, reference_trace)
