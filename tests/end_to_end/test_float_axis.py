"""An axis takes numbers that are no integers, such as learning rates."""

from __future__ import annotations

import pytest

from pytest_trainsafe import TrainsafeFailure, assert_trainsafe
from tests.support.end_to_end.models import float_axis_program

RATES = [1e-3, 3e-4]


@pytest.mark.trainsafe(float_axis_program.train, dp=2, lr=RATES, dtype=["float64"])
def test_a_correct_program_passes_at_each_learning_rate(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(
    float_axis_program.train, dp=2, lr=RATES, dtype=["float64"], args={"fault": True}
)
def test_a_fault_at_one_learning_rate_fails_there_only(candidate_trace, reference_trace):
    if candidate_trace.case.point.get("lr", 0.0) == RATES[0]:
        assert_trainsafe(candidate_trace, reference_trace)
        return
    with pytest.raises(TrainsafeFailure, match=r"at dp=2 lr=0\.0003") as failure:
        assert_trainsafe(candidate_trace, reference_trace)
    assert "bias · main_grad" in str(failure.value)
