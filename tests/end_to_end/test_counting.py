"""Buffers that count forwards are compared over dp, although they are equal on all ranks."""

from __future__ import annotations

import pytest

from pytest_trainsafe import Traces, assert_trainsafe
from pytest_trainsafe.assertions import TrainsafeFailure
from tests.support.end_to_end.counting_program import train


@pytest.mark.trainsafe(train, dp=2, dtype="float64", candidate_args={"by": 3})
def test_a_wrong_count_fails(candidate_trace: Traces, reference_trace: Traces) -> None:
    with pytest.raises(TrainsafeFailure, match=r"starts at \s*seen · buffer · step 0"):
        assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(train, dp=2, dtype="float64")
def test_a_count_of_the_ranks_own_forwards_passes(
    candidate_trace: Traces, reference_trace: Traces
) -> None:
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(train, dp=2, dtype="float64", args={"summed": True})
def test_a_count_of_the_forwards_of_all_ranks_passes(
    candidate_trace: Traces, reference_trace: Traces
) -> None:
    assert_trainsafe(candidate_trace, reference_trace)
