"""Programs that differentiate a gradient again are measured and judged as others are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_trainsafe import assert_trainsafe
from pytest_trainsafe.assertions import TrainsafeFailure
from tests.support.end_to_end.penalty_program import train


@pytest.mark.trainsafe(train, dp=2, dtype=["float64", "float32"])
def test_a_gradient_penalty_passes(candidate_trace, reference_trace):
    """The noise that measures rounding keeps the graph of the gradient."""
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(train, dp=2, dtype="float64")
def test_a_missing_term_of_the_second_order_fails(candidate_trace, reference_trace):
    candidate_trace.case = replace(candidate_trace.case, candidate_arguments={"twice": False})
    with pytest.raises(TrainsafeFailure) as failure:
        assert_trainsafe(candidate_trace, reference_trace)
    assert "activation_grad · step 0 · micro-batch 0 · float64" in str(failure.value)
